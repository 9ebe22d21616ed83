"""The KV cache: keys (rotated) and values of every token so far, per layer: see `npurt.cpu.kv`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu import kv
from npurt.device import F32
from npurt.errors import ContextFull, SettingError
from npurt.llm.file.config import Config

DTYPES = {"f16": np.float16, "f32": np.float32}
LONGEST = 1 << 22  # positions; rope tables and offsets stay well inside their types


class Positions:
    """The number of used positions, of *n_ctx*.

    Raises:
        SettingError: *n_ctx* is out of range.
    """

    def __init__(self, n_ctx: int) -> None:
        if not 1 <= n_ctx <= LONGEST:
            raise SettingError(
                f"a context of {n_ctx} tokens cannot be had", remedy=f"use -c 1 to {LONGEST}"
            )
        self.n_ctx = n_ctx
        self.length = 0  # positions in use

    def require(self, count: int) -> None:
        """Refuse *count* more tokens if they do not fit.

        Raises:
            ContextFull: They do not fit.
        """
        if self.length + count > self.n_ctx:
            raise ContextFull(
                f"{count} more tokens do not fit: {self.length} of {self.n_ctx} positions are used",
                remedy="raise n_ctx (-c), shorten the prompt, call reset(), or allow "
                "context_shift=True to forget the oldest tokens",
            )

    def truncate(self, length: int) -> None:
        """Forget all positions from *length* on."""
        self.length = min(self.length, length)


class Cache(Positions):
    """Keys and values for *n_ctx* positions, by layer that has attention.

    Raises:
        SettingError: *n_ctx* is out of range, or *dtype* is unknown.
    """

    def __init__(self, config: Config, n_ctx: int, dtype: str = "f16") -> None:
        super().__init__(n_ctx)
        if dtype not in DTYPES:
            raise SettingError(
                f"the KV cache cannot be {dtype!r}", remedy=f"use one of {', '.join(DTYPES)}"
            )
        self.keys: dict[int, npt.NDArray[Any]] = {}
        self.values: dict[int, npt.NDArray[Any]] = {}
        for layer in range(config.n_layers):
            if not (config.is_recurrent(layer) or config.is_convolved(layer)):
                self.keys[layer], self.values[layer] = kv.allocate(
                    config.n_kv_heads, n_ctx, config.head_width, DTYPES[dtype]
                )

    @property
    def nbytes(self) -> int:
        """Bytes of the memory for all positions."""
        return sum(a.nbytes for a in (*self.keys.values(), *self.values.values()))

    def release(self) -> None:
        """Release the memory for good."""
        self.keys.clear()
        self.values.clear()

    def read(self, layer: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return copies of the keys and values ``[G, length, W]`` of *layer*."""
        keys = kv.read_keys(self.keys[layer], self.length)
        return keys, self.values[layer][:, : self.length].copy()

    def write(self, layer: int, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Write keys and values ``[G, length, W]`` into the first positions of *layer*."""
        kv.write_keys(self.keys[layer], keys)
        self.values[layer][:, : values.shape[1]] = values

    def shift(
        self, keep: int, drop: int, rotations: Sequence[tuple[F32, F32]], *, halves: bool
    ) -> None:
        """Forget positions ``[keep, keep + drop)`` and move the later ones down by *drop*.

        The moved keys are rotated back by *drop* positions: row *drop* of the tables cos and sin
        ``[positions, rotated / 2]`` of each layer, over the factor that both have (row 0 of cos).
        """
        end = self.length
        layers = zip(self.keys.values(), self.values.values(), rotations, strict=True)
        for keys, values, (cos, sin) in layers:
            pairs = cos.shape[1]
            c, s = cos[drop] / cos[0], sin[drop] / cos[0]
            kv_heads, panels, width, _ = keys.shape
            lines = keys.transpose(0, 1, 3, 2).reshape(kv_heads, panels * 16, width)
            moved = lines[:, keep + drop : end].astype(np.float32)
            a = moved[..., :pairs] if halves else moved[..., 0 : 2 * pairs : 2]
            b = moved[..., pairs : 2 * pairs] if halves else moved[..., 1 : 2 * pairs : 2]
            a[:], b[:] = a * c + b * s, b * c - a * s
            lines = lines.copy()
            lines[:, keep : end - drop] = moved
            keys[:] = lines.reshape(kv_heads, panels, 16, width).transpose(0, 1, 3, 2)
            values[:, keep : end - drop] = values[:, keep + drop : end].copy()
        self.length = end - drop
