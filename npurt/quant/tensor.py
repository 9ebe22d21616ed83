"""A quantised tensor with numpy's interface: shape, .T, indexing of rows, ``a @ w.T``."""

import math
import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, brief
from npurt.quant.array import QuantisedArray, refused
from npurt.quant.blocks import DTYPES, Blocks, require_blocks
from npurt.quant.canonical import F32, Canonical, canonical
from npurt.quant.decode import dequantize, not_finite
from npurt.quant.encode import quantize
from npurt.quant.types import Format, find


class QTensor(QuantisedArray):
    """A quantised weight in the layout of the file: blocks along K, the last axis of `blocks`.

    The shape is ``(K,)``, ``(N, K)`` or, for experts, ``(E, N, K)``.  A 2-D tensor has a transposed
    view ``w.T`` of shape ``(K, N)``, which shares the blocks.  Two tensors are equal only if they
    are the same object.

    ``a @ w.T`` and ``w @ b`` run as `npurt.matmul`, which packs the weight for each product; use
    `npurt.pack` to pack it once.  numpy functions can read F32 and F16 tensors without a copy; call
    `dequantize` for the values of other formats.

    Attributes:
        blocks: ``[..., K / format.block]`` of the format's dtype, in the file's orientation; may be
            a read-only view of a mapped file.
        format: The row of `types.FORMATS`.
        transposed: True for a view ``.T``, whose `shape` is the reverse of the file's.

    Raises:
        LayoutError: *blocks* has another dtype, 0 or more than 3 axes, or rows that are not
            contiguous.
    """

    __slots__ = ("_base", "blocks", "format", "transposed")

    def __init__(self, blocks: Blocks, fmt: Format | str) -> None:
        self.format = find(fmt)
        require_blocks(blocks, self.format)
        if blocks.ndim > 3 or (
            blocks.size and blocks.shape[-1] > 1 and blocks.strides[-1] != blocks.itemsize
        ):
            raise LayoutError(
                f"blocks of shape {blocks.shape} and strides {blocks.strides} have more than 3 "
                "axes, or rows that are not contiguous",
                remedy="pass an array of at most 3 axes from np.ascontiguousarray()",
            )
        self.blocks = blocks
        self.transposed = False
        self._base: QTensor | None = None

    @classmethod
    def from_bytes(cls, buf: Any, fmt: Format | str, shape: Sequence[int]) -> Self:
        """View the bytes of *buf* as a tensor of *shape* ``(..., K)``, without a copy.

        Args:
            buf: Any contiguous buffer: bytes, memoryview, mmap, array.

        Raises:
            LayoutError: K is not a multiple of the block, *buf* is not a buffer, or its size is not
                that of a tensor of *fmt* and *shape*.
            UnsupportedOp: *fmt* is unknown.
        """
        fmt = find(fmt)
        *lead, k = _sizes(shape)
        if k % fmt.block:
            raise LayoutError(
                f"K = {k} is not a multiple of {fmt.block}, the block of {fmt.name}",
                remedy="check that the shape is (N, K) with K last, and that the type is right",
            )
        view = _view(buf)
        expected = math.prod(lead) * fmt.row_bytes(k)
        if view.nbytes != expected or not view.c_contiguous:
            raise LayoutError(
                f"{fmt.name} {brief(tuple(shape))} takes {brief(expected)} contiguous bytes, not "
                f"{view.nbytes}",
                remedy="pass exactly the tensor's bytes; the file may be truncated",
            )
        return cls(np.ndarray((*lead, k // fmt.block), DTYPES[fmt.name], buffer=view), fmt)

    @classmethod
    def quantize(cls, x: npt.ArrayLike, fmt: Format | str) -> Self:
        """Quantise *x* ``(..., K)``; errors are those of `encode.quantize`."""
        fmt = find(fmt)
        return cls(quantize(x, fmt), fmt)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis, such as ``(N, K)``, or ``(K, N)`` for a view ``.T``."""
        *lead, count = self.blocks.shape
        stored = (*lead, count * self.format.block)
        return stored[::-1] if self.transposed else stored

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.blocks.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.blocks.size * self.format.block

    @property
    def sum_axis(self) -> int:
        """The index of the axis K, which is divided into blocks and summed over in products."""
        return 0 if self.transposed else self.ndim - 1

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks."""
        return self.blocks.nbytes

    @property
    def dtype(self) -> str:
        """The format's name, such as ``q4_k``."""
        return self.format.name

    @property
    def T(self) -> "QTensor":  # noqa: N802  numpy's name
        """The transposed view; ``w.T.T is w``.

        Raises:
            LayoutError: The tensor has three axes.
        """
        if self._base is not None:
            return self._base
        if self.ndim == 1:
            return self
        if self.ndim == 3:
            raise LayoutError(f"{self!r} has no .T", remedy="transpose one matrix of it: w[i].T")
        view = QTensor(self.blocks, self.format)
        view.transposed, view._base = True, self
        return view

    def with_sum_axis(self, axis: int) -> "QTensor":
        """Return a tensor with the same values and with K along *axis*.

        A matrix of floats is copied in that order.  Other tensors are returned unchanged, because
        their blocks cannot be transposed.

        Raises:
            LayoutError: *axis* is out of range.
        """
        if (
            isinstance(axis, bool)
            or not isinstance(axis, int | np.integer)
            or axis not in (range(self.ndim))
        ):
            raise LayoutError(
                f"{self!r} has no axis {brief(axis, 40)}", remedy=f"pass 0 to {self.ndim - 1}"
            )
        if axis == self.sum_axis or self.ndim != 2 or self.format.block > 1:
            return self
        other = QTensor(np.ascontiguousarray(self.blocks.T), self.format)
        return other if self.transposed else other.T

    def copy(self) -> "QTensor":
        """Return a tensor with a copy of the blocks."""
        return _restored(self.blocks.copy(), self.format.name, self.transposed)

    def dequantize(self) -> F32:
        """Return the values, float32 of `shape`."""
        values = dequantize(self.blocks, self.format)
        return values.T if self.transposed else values

    def first_not_finite(self) -> tuple[int, ...] | None:
        """Return the index of the first row with NaN or infinity, in the file's orientation.

        Returns:
            One number for each axis before K, or None if all values are finite.
        """
        bad = not_finite(self.blocks, self.format).any(axis=-1)
        return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None

    def canonical(self) -> Canonical:
        """Return codes and scales in the file's orientation ``(..., N, K)``, also for ``.T``."""
        return canonical(self.blocks, self.format)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return the values of an F32 or F16 tensor; implements numpy's ``__array__`` protocol.

        Raises:
            UnsupportedOp: The format is another one: use `dequantize`.
        """
        values = self._stored("numpy.asarray")
        if copy is None:  # numpy 1 has no copy=None
            return np.asarray(values, dtype)
        return np.array(values, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule of the values of an F32 or F16 tensor, without a copy.

        Raises:
            UnsupportedOp: The format is another one: use `dequantize`.
        """
        return self._stored("numpy.from_dlpack").__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._stored("numpy.from_dlpack").__dlpack_device__()

    def _stored(self, name: str) -> npt.NDArray[Any]:
        """Return a view of the values of F32 and F16; the error for other formats names *name*."""
        if self.blocks.dtype.kind != "f":
            raise refused(name, self)
        return self.blocks.T if self.transposed else self.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.blocks, self.format.name, self.transposed)

    def __getitem__(self, rows: Any) -> "QTensor":
        """Return whole rows, which share the blocks if *rows* has only ints and slices.

        Args:
            rows: An int, a slice, a sequence of ints or a mask for each axis before K.  For a view
                ``w.T``, the axis K comes first: ``w.T[:, rows]``.

        Raises:
            LayoutError: The index would select a part of the axis K.
            IndexError: An index is out of range, or a mask and its axis differ in length.
        """
        index = _of_every_axis(rows if isinstance(rows, tuple) else (rows,), self.ndim)
        axis = self.sum_axis
        whole = len(index) == self.ndim and _is_whole(index[axis], self.shape[axis])
        keys = index[:axis] + index[axis + 1 :]
        if not whole or not all(map(_selects_rows, keys)):
            raise cannot_be_cut(self, rows)
        try:
            blocks = self.blocks[tuple(map(_as_numpys, keys))]
        except IndexError:
            _require_rows(index, self.shape, axis)
            raise
        chosen = QTensor(blocks, self.format)
        return chosen.T if self.transposed else chosen

    def __repr__(self) -> str:
        flag = ", transposed" if self.transposed else ""
        return f"QTensor({self.dtype}, shape={self.shape}, {readable_bytes(self.nbytes)}{flag})"


def _require_rows(index: Sequence[Any], shape: Sequence[int], sum_axis: int) -> None:
    """Raise numpy's IndexError with the number of the weight's axis, not of the blocks' axis."""
    for axis, (key, size) in enumerate(zip(index, shape, strict=True)):
        if axis != sum_axis:
            try:
                np.broadcast_to(np.False_, size)[_as_numpys(key)]
            except IndexError as error:
                raise IndexError(str(error).replace("axis 0", f"axis {axis}")) from None


def cannot_be_cut(weight: QuantisedArray, index: Any) -> LayoutError:
    """Return the error that *index* does not select whole rows of *weight*."""
    before = ":, " * (weight.sum_axis + 1 if weight.sum_axis < weight.ndim - 1 else 0)
    along_n = "" if weight.ndim == 1 else f"choose along N, for example w[{before}2:4], or "
    return LayoutError(
        f"{weight!r} cannot be indexed with {brief(index)}: its blocks lie along axis "
        f"{weight.sum_axis}, which cannot be cut",
        remedy=f"{along_n}index the array w.dequantize()",
    )


def _sizes(shape: Sequence[int]) -> list[int]:
    """Return *shape* as a list of one or more ints >= 0.

    Raises:
        LayoutError: *shape* is not valid.
    """
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:  # not a sequence, or not of integers
        sizes = []
    if not sizes or min(sizes) < 0:
        raise LayoutError(f"{brief(shape)} is not a shape", remedy="pass (K,), (N, K) or (E, N, K)")
    return sizes


def _view(buf: Any) -> memoryview:
    try:
        return memoryview(buf)
    except TypeError as error:
        raise LayoutError(
            f"a {type(buf).__name__} is not a buffer", remedy="pass bytes, an array or an mmap"
        ) from error


def _restored(blocks: Blocks, fmt: str, transposed: bool) -> QTensor:
    """Return a tensor, or its view ``.T`` if *transposed*, for `copy` and unpickling."""
    tensor = QTensor(blocks, fmt)
    return tensor.T if transposed else tensor


def _of_every_axis(index: tuple[Any, ...], ndim: int) -> tuple[Any, ...]:
    """Return *index* with one key per axis; an Ellipsis and missing keys become full slices."""
    places = [i for i, key in enumerate(index) if key is Ellipsis] or [len(index)]
    before, after = index[: places[0]], index[places[0] + 1 :]
    return (*before, *[slice(None)] * (ndim - len(before) - len(after)), *after)


def _is_whole(key: Any, length: int) -> bool:
    """Return whether *key* is a slice of the whole axis, in order."""
    return isinstance(key, slice) and key.indices(length) == (0, length, 1)


def _selects_rows(key: Any) -> bool:
    """Return whether *key* is a slice, an int, a sequence of ints or a mask."""
    if isinstance(key, slice):
        return True
    if not isinstance(key, int | np.integer | list | tuple | range | np.ndarray):
        return False
    try:
        array = np.asarray(key)
    except ValueError:  # lists that differ in length
        return False
    if array.dtype.kind == "b" or (not array.size and not isinstance(key, np.ndarray)):
        return array.ndim == 1
    return array.dtype.kind in "iu" and array.ndim <= 1


def _as_numpys(key: Any) -> Any:
    """Return *key*, or an empty array of ints for an empty list: numpy would make it floats."""
    return np.zeros(0, np.intp) if isinstance(key, list) and not key else key


def readable_bytes(count: int) -> str:
    """Return *count* bytes in the largest of B, kB, MB and GB that gives a number >= 1."""
    thousands = min((len(str(count)) - 1) // 3, 3)
    unit = ("B", "kB", "MB", "GB")[thousands]
    return f"{count / 1000**thousands:.{min(thousands, 1)}f} {unit}"
