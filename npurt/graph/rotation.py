"""Rotary angles by position.  Angles are computed in float64; the tables are float32."""

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def rotations(radians: F64, magnitude: float, positions: int) -> tuple[F32, F32]:
    """Return cos and sin, float32 ``[positions, len(radians)]``, times *magnitude*."""
    cos = np.empty((positions, len(radians)), np.float32)
    sin = np.empty_like(cos)
    for start in range(0, positions, 4096):  # the float64 angles of a long context are large
        at = np.arange(start, min(start + 4096, positions), dtype=np.float64)
        angles = at[:, None] * radians
        cos[start : start + len(at)] = np.cos(angles) * magnitude
        sin[start : start + len(at)] = np.sin(angles) * magnitude
    return cos, sin
