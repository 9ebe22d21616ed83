"""Weights of a DSP in the memory of the host, multiplied with the bits of the DSP's kernels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base import library
from npurt.base.once import once
from npurt.device.device import F32, F64
from npurt.device.host_products import HostDevice, HostPacked
from npurt.hexagon.layout import error_bound, images, quantise
from npurt.hexagon.layout.formats import ImageFormat
from npurt.hexagon.layout.images import U8
from npurt.hexagon.layout.packed import IntegerPacked
from npurt.quant.tensor import QTensor

HEADER = Path(__file__).with_name("npurt_hexagon_host.h")
LIBRARY = "hexagon/host/libnpurt_hexagon_host.so"
ROWS = 1 << 20  # elements of a weight that are unpacked at a time


@once
def ffi() -> Any:
    """Parse the header at the first use."""
    return library.declare(HEADER)


@once
def lib() -> Any:
    """Open the library at the first use.

    Raises:
        DeviceNotFound: The library is missing or cannot be loaded.
    """
    return library.load(ffi(), library.path_of(LIBRARY), "the Hexagon's arithmetic")


class HexagonHostPacked(IntegerPacked, HostPacked):
    """A weight as integers in rows, from the *image* that the DSP's kernels read.

    Args:
        device: The host.
        tensor: The weight.
        fmt: The format of the image.
        group: Columns of activations that share a scale; 0: the whole row.
        image: The image, which is not kept.
    """

    def __init__(
        self, device: HostDevice, tensor: QTensor, fmt: ImageFormat, group: int, image: U8
    ) -> None:
        self.device, self.tensor = device, tensor
        self.format, self.group = fmt, group
        n, k = tensor.shape
        columns = images.steps(k) * images.STEP
        scales = columns // fmt.kind.group if fmt.kind.group else 1
        self._codes = np.zeros((n, columns), np.int16 if fmt.kernel == "q16" else np.int8)
        self._scales = np.zeros((n, scales), np.int16)
        self._offsets = np.zeros((n, scales), np.int16) if fmt.offsets else None
        self._exponents = np.zeros(n, np.int32)
        step = max(1, ROWS // columns)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            part = images.unpack(image, fmt, n, k, rows)
            self._codes[rows, :k] = part.codes
            self._scales[rows, : part.scales.shape[1]] = part.scales
            self._exponents[rows] = part.exponents
            if self._offsets is not None and part.offsets is not None:
                self._offsets[rows, : part.offsets.shape[1]] = part.offsets
        self._weight = self._struct()

    def _struct(self) -> Any:
        kind = self.format.kind
        return ffi().new(
            "npurt_host_weight *",
            {
                "codes": _at("void *", self._codes),
                "scales": _at("int16_t *", self._scales),
                "offsets": _at("int16_t *", self._offsets),
                "exponents": _at("int32_t *", self._exponents),
                "n": self.n,
                "columns": self._codes.shape[1],
                "wide": self._codes.dtype == np.int16,
                "groups": quantise.BLOCK // kind.group if kind.group else 0,
                "dropped": kind.unit.bit_length() - 1,
            },
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the integers."""
        arrays = (self._codes, self._scales, self._offsets, self._exponents)
        return sum(array.nbytes for array in arrays if array is not None)

    def prepare(self, x: F32) -> Callable[[F32, int, int], None]:
        """See `HostPacked.prepare`."""
        rows = self._rows(quantise.quantise(x, self.group))
        exponents, codes, scales, sums = rows
        struct = ffi().new(
            "npurt_host_rows *",
            {
                "codes": _at("int16_t *", codes),
                "scales": _at("int16_t *", scales),
                "sums": _at("int16_t *", sums),
                "exponents": _at("int32_t *", exponents),
                "m": len(x),
            },
        )

        def multiply(out: F32, first: int, end: int, owner: Any = rows) -> None:
            del owner  # keeps the arrays of the struct alive
            y = _at("float *", out)
            lib().npurt_host_multiply(self._weight, struct, y, out.strides[0] // 4, first, end)

        return multiply

    def _rows(self, x: quantise.Quantised) -> tuple[npt.NDArray[Any], ...]:
        """Return the exponents, codes, scales and factors of offsets of `npurt_host_rows`."""
        m, k = x.codes.shape
        codes = np.zeros((m, self._codes.shape[1]), np.int16)
        codes[:, :k] = x.codes
        scales = np.zeros((m, codes.shape[1] // quantise.BLOCK), np.int16)
        scales[:, : x.scales.shape[1]] = x.scales
        half = codes.reshape(m, -1, quantise.BLOCK // 2).sum(axis=2, dtype=np.int32)
        if self.format.kind.group == quantise.BLOCK // 2:
            sums = -16 * half
        else:
            sums = (half[:, ::2] + half[:, 1::2]) * scales + (1 << 11) >> 12
        return x.exponents, codes, scales, sums.astype(np.int16)

    def rounded(self, x: F32) -> F64:
        """See `HostPacked.rounded`."""
        return quantise.multiplied(x, self.group)

    def magnitudes(self, x: F32) -> F64:
        """See `HostPacked.magnitudes`."""
        return error_bound.magnitudes(quantise.quantise(x, self.group), self.group)

    def integers(self, rows: slice) -> images.UnpackedIntegers:
        """Return the integers of *rows*, without the padding."""
        count = self.k // self.format.kind.group if self.format.kind.group else 1
        return images.UnpackedIntegers(
            self._codes[rows, : self.k].astype(np.int32),
            self._scales[rows, :count].astype(np.int32),
            None if self._offsets is None else self._offsets[rows, :count].astype(np.int32),
            self._exponents[rows],
        )


def _at(kind: str, array: npt.NDArray[Any] | None) -> Any:
    """Return the address of *array*, NULL for None; the address does not keep it alive."""
    return ffi().NULL if array is None else ffi().cast(kind, array.ctypes.data)
