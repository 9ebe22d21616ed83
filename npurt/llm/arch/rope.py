"""Compute the tables of the rotary position embedding.

Angles are computed in float64; the tables are float32.
Sources: Su et al. 2021 (rotation); Peng et al. 2023 (yarn); llama.cpp ggml_rope (parameters).
"""

import math

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.errors import ModelFormatError
from npurt.graph.meaning import rotations
from npurt.llm.file.config import Config, Scaling
from npurt.llm.file.header import DAMAGED

F64 = npt.NDArray[np.float64]


def frequencies(config: Config, divisors: F32 | None = None) -> tuple[F64, float]:
    """Return the radians per position ``[rotated / 2]`` and the factor of cos and sin.

    Args:
        divisors: The divisors of the frequencies ``[rotated / 2]``, for Llama 3's scaling and
            longrope.

    Raises:
        ModelFormatError: A divisor is not a positive number.
    """
    n = config.rotated
    base = config.rope_base ** (-np.arange(0, n, 2, dtype=np.float64) / n)
    if divisors is not None:
        if not (np.isfinite(divisors) & (divisors > 0)).all():
            raise ModelFormatError(
                "rope_freqs has a value that is no positive number", remedy=DAMAGED
            )
        base = base / divisors.astype(np.float64)
    scaling = config.scaling
    if scaling.kind == "linear":
        return base / scaling.factor, scaling.attention_factor
    if scaling.kind == "yarn":
        keep = _kept(scaling, n, config.rope_base)
        magnitude = (0.1 * np.log(scaling.factor) + 1) * scaling.attention_factor
        return base / scaling.factor * (1 - keep) + base * keep, float(magnitude)
    return base, scaling.attention_factor


def _kept(scaling: Scaling, n: int, base: float) -> F64:
    """Return the fraction of each frequency that yarn does not scale.

    The fraction is 1 for the fastest frequencies and 0 for the slowest.
    """

    def dimension(rotations: float) -> float:
        """Return the index of the frequency with this number of rotations in original_context."""
        turns = scaling.original_context / (2 * math.pi * rotations)
        return n * math.log(turns) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(n - 1.0, high)
    ramp = (np.arange(n // 2) - low) / max(0.001, high - low)
    return np.asarray(1 - np.clip(ramp, 0, 1))


def tables(config: Config, positions: int, divisors: F32 | None = None) -> tuple[F32, F32]:
    """Return cos and sin, float32 ``[positions, rotated / 2]``."""
    return rotations(*frequencies(config, divisors), positions)
