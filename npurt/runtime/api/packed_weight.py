"""Quantise a weight and lay it out for a device, for many products: `pack`, `PackedWeight`."""

import atexit
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.base.once import once
from npurt.device.device import F32, Packed
from npurt.errors import LayoutError, NumericsError, UnknownDevice, brief
from npurt.quant.array import QuantisedArray, refused
from npurt.quant.encode import encodable
from npurt.quant.tensor import QTensor, cannot_be_cut, readable_bytes
from npurt.runtime.api.products import Products, Weight
from npurt.runtime.open.arrays import as_array, as_float
from npurt.runtime.open.devices import open_device
from npurt.runtime.report.ledger import Report, joined


class PackedWeight(QuantisedArray):
    """A weight of shape ``(K, N)`` on a device, the right operand of products; `pack` makes it.

    ``a @ w`` calls ``npurt.matmul(a, w)``, and so do numpy's dot, inner, tensordot, einsum and
    linalg.  ``w.T``, of shape ``(N, K)``, is a left operand: ``w.T @ b``.  ``w[:, rows]`` packs the
    chosen columns again.  numpy's other functions raise an error, because they would decode the
    weight; call `dequantize` first.

    A weight is immutable, so copies are the weight itself.  A pickle holds the codes and the name
    of the device; loading packs the codes again.
    """

    def __init__(self, packed: Packed, products: Products | None = None) -> None:
        self.products = products or Products(packed.device)
        self.weight = Weight(packed, packed.device.caps.name)
        self._base: PackedWeight | None = None  # the weight that a transposed view belongs to

    @property
    def packed(self) -> Packed:
        """The weight on its device, or on the CPU after a wrong product of the device."""
        return self.weight.packed

    @property
    def tensor(self) -> QTensor:
        """The weight in the layout of a file, ``[N, K]``."""
        return self.packed.tensor

    @property
    def transposed(self) -> bool:
        """True for the view ``.T`` of shape ``(N, K)``."""
        return self._base is not None

    @property
    def T(self) -> "PackedWeight":  # noqa: N802  numpy's name
        """The transposed view, which is a left operand; ``w.T.T is w``."""
        if self._base is not None:
            return self._base
        view = PackedWeight(self.packed, self.products)
        view.weight, view._base = self.weight, self
        return view

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, N)``, as in ``a @ w``."""
        k, n = self.packed.k, self.packed.n
        return (n, k) if self.transposed else (k, n)

    @property
    def sum_axis(self) -> int:
        """The axis K, along which products sum."""
        return int(self.transposed)

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.tensor.size

    @property
    def dtype(self) -> str:
        """The format's name, such as ``q4_k``."""
        return self.tensor.dtype

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.packed.nbytes

    @property
    def device(self) -> str:
        """Name of the weight's device."""
        return self.packed.device.caps.name

    def dequantize(self) -> F32:
        """Return the values, float32 of `shape`."""
        return (self.tensor if self.transposed else self.tensor.T).dequantize()

    def copy(self) -> "PackedWeight":
        """Return the weight itself, which is immutable."""
        return self

    def __getitem__(self, index: Any) -> "PackedWeight":
        """Return ``w[:, rows]`` or ``w.T[rows]``, packed again; *rows* is a slice, ints or a mask.

        ``w[:]`` and ``w[...]`` are the weight itself.

        Raises:
            LayoutError: The index selects a part of K, or the result would have one axis.
            IndexError: A row is beyond N, or the length of a mask is not N.
        """
        try:
            rows = (self.tensor if self.transposed else self.tensor.T)[index]
        except LayoutError as error:
            raise cannot_be_cut(self, index) from error
        if rows.ndim != 2:
            raise LayoutError(
                f"an int index reduces {self!r} to a vector, and only matrices can be packed",
                remedy="use a slice, for example 3:4",
            )
        every, some = self.tensor.blocks, rows.blocks
        if (every.shape, every.strides) == (some.shape, some.strides) and np.may_share_memory(
            every, some
        ):  # all rows, in order
            return self
        matrix = rows if self.transposed else rows.T
        chosen = PackedWeight(self.products.device.pack(matrix, int16=None), self.products)
        return chosen.T if self.transposed else chosen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> F32:
        raise refused("numpy.asarray", self)

    def __dlpack__(self, **options: Any) -> Any:
        raise refused("numpy.from_dlpack", self)

    def __dlpack_device__(self) -> tuple[int, int]:
        raise refused("numpy.from_dlpack", self)

    def __copy__(self) -> "PackedWeight":
        return self

    def __deepcopy__(self, memo: Any) -> "PackedWeight":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.tensor, self.weight.planned, self.transposed)

    def __repr__(self) -> str:
        size = readable_bytes(self.nbytes)
        flag = ", transposed" if self.transposed else ""
        return f"PackedWeight({self.dtype}, shape={self.shape}, {size} on {self.device}{flag})"


def _restored(tensor: QTensor, device: str, transposed: bool) -> PackedWeight:
    """Unpickle a weight: pack *tensor* again."""
    weight = pack(tensor.T, device=device)
    return weight.T if transposed else weight


def shared(name: str) -> Products:
    """Return the process's `Products` of the device *name*, opened on first use, closed at exit."""
    if not isinstance(name, str):
        raise UnknownDevice(
            f"{brief(name)} is not a device name",
            remedy="use auto, or a name as in npurt.devices()",
        )
    products = _shared(name)
    _used.setdefault(products)
    return products


_used: dict[Products, None] = {}  # results of `shared`, in the order of first use


@once
def _shared(name: str) -> Products:
    products = Products(open_device(name))
    atexit.register(products.close)
    return products


def report(device: str | None = None) -> Report:
    """Return the counts of all products of `npurt.matmul` in this process, with verifications.

    Args:
        device: Report only on products of this device; by default on all devices.

    Raises:
        DeviceNotFound: *device* is not available.
    """
    # A device may be open twice, for example as "auto" and as "cpu".
    asked = shared("auto" if device is None else device)
    reports = [
        products.report()
        for products in tuple(_used)  # another thread may open a device meanwhile
        if device is None or products.device.caps.name == asked.device.caps.name
    ]
    return joined([each for each in reports if each.rows] or [asked.report()])


def pack(
    b: npt.ArrayLike | QTensor | PackedWeight, dtype: str = "auto", *, device: str = "auto"
) -> PackedWeight:
    """Quantise *b* and lay it out for *device*, for many products.

    Args:
        b: Float array ``[K, N]``, or a QTensor's transposed view ``w.T`` of shape ``(K, N)``, or a
            packed weight to convert to another device or format.
        dtype: Format to quantise to, such as ``q8_0``, ``q4_0``, ``q4_k`` or ``f16``; by default
            ``q8_0`` for floats, and the format of a quantised *b*, whose codes are then unchanged.
            For another format, *b* is decoded and quantised again.
        device: Device that will multiply; by default a packed *b* remains on its device.

    Raises:
        LayoutError: *b* is not 2-D, or K is not a multiple of the format's block length.
        NumericsError: *b* holds NaN or infinity.
        UnsupportedOp: npurt has no format *dtype*, or the device has no kernel for it.
    """
    products = b.products if isinstance(b, PackedWeight) and device == "auto" else shared(device)
    tensor = finite(_quantised(b, dtype))
    if isinstance(b, PackedWeight) and products is b.products and tensor is b.tensor:
        return b
    return PackedWeight(products.device.pack(tensor, int16=None), products)


def finite(tensor: QTensor) -> QTensor:
    """Return *tensor* ``[N, K]`` if all its values are finite.

    Raises:
        NumericsError: A value is NaN or infinite.
    """
    row = tensor.first_not_finite()
    if row is not None:
        raise NumericsError(
            f"row {row[0]} of the weight [N, K] holds NaN or infinity",
            remedy="replace NaN and infinity before packing; a file that has them is damaged",
        )
    return tensor


def _how_to_pack(w: QuantisedArray) -> str:
    """Return the remedy for a weight that cannot be a right operand."""
    if isinstance(w, PackedWeight):  # a transposed view
        return "pass w itself, without the .T"
    return {
        1: "pass a matrix of one row, w[i : i + 1].T, instead of the row w[i]",
        2: "pass w.T, of shape (K, N)",
        3: "pack each matrix of the stack: w[i].T",
    }[w.ndim]


def _quantised(b: npt.ArrayLike | QTensor | PackedWeight, dtype: str) -> QTensor:
    """Return b as a QTensor ``[N, K]``."""
    if isinstance(b, QuantisedArray):
        if b.ndim != 2 or b.sum_axis != 0:
            raise LayoutError(f"{b!r} is not a right operand", remedy=_how_to_pack(b))
        tensor: QTensor = b.tensor if isinstance(b, PackedWeight) else b.T
        if isinstance(dtype, str) and dtype.lower() in ("auto", tensor.dtype):
            return tensor
        return QTensor.quantize(tensor.dequantize(), encodable(dtype))
    array = as_float(as_array(b, "b"), "b")
    if array.ndim != 2:
        raise LayoutError(
            f"b has {array.ndim} axes; a weight has two, [K, N]",
            remedy="pack each matrix separately",
        )
    bad = ~np.isfinite(array)
    if bad.any():
        at = np.unravel_index(bad.argmax(), bad.shape)
        raise NumericsError(
            f"b[{at[0]}, {at[1]}] is {array[at]}; a weight must have finite numbers",
            remedy="replace NaN and infinity before packing; a file that has them is damaged",
        )
    fmt = encodable("q8_0" if isinstance(dtype, str) and dtype.lower() == "auto" else dtype)
    try:
        return QTensor.quantize(np.ascontiguousarray(array.T), fmt)
    except NumericsError as error:
        raise NumericsError(f"in x = b.T, {error.what}", remedy=error.remedy) from None
