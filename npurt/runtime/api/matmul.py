"""`matmul` and `pack`: numpy's product, on a device, with quantised operands.

Dtypes: int8 @ int8 gives int32, exact.  Otherwise both operands are float32 (float16 and int8 are
widened, float64 is rounded) and so is the result.  A packed operand multiplies by its own rules:
integer formats round the other operand to int8, one scale per 32 along K.

An NPU multiplies packed operands.  Two arrays multiply on the CPU, int8 ones on the RK3588 as well.
"""

import atexit
import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from npurt.cpu.device import CpuDevice
from npurt.device import F32, MAX_EXACT_K, Packed
from npurt.errors import LayoutError, NumericsError, UnknownDevice, UnsupportedOp
from npurt.once import once
from npurt.quant.tensor import QTensor
from npurt.runtime.api.products import Products, Weight
from npurt.runtime.open.arguments import encodable
from npurt.runtime.open.devices import open_device
from npurt.runtime.report.ledger import Report
from npurt.verify import Mode, mode

Array = npt.NDArray[Any]

FLOATS = (np.float16, np.float32, np.float64)


class PackedWeight:
    """The right operand of products, on a device: shape ``(K, N)``.

    Made by `pack`.  `tensor` is the quantised weight ``[N, K]`` it was made from.
    """

    def __init__(self, packed: Packed, products: Products | None = None) -> None:
        self.products = products or Products(packed.device)
        self.weight = Weight(packed, packed.device.caps.name)

    @property
    def packed(self) -> Packed:
        """What its device multiplies by; the CPU, once the device has got a product wrong."""
        return self.weight.packed

    @property
    def tensor(self) -> QTensor:
        """The weight as it lies in a file, ``[N, K]``."""
        return self.packed.tensor

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, N)``: what ``a @ w`` sees."""
        return self.packed.k, self.packed.n

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.packed.nbytes

    @property
    def device(self) -> str:
        """Name of the device it is on."""
        return self.packed.device.caps.name

    def dequantize(self) -> F32:
        """Return the values, float32 ``[K, N]``."""
        return self.tensor.T.dequantize()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.tensor.T.__array__(dtype, copy)

    def __repr__(self) -> str:
        size = self.nbytes / 1e6
        return (
            f"PackedWeight({self.tensor.dtype}, shape={self.shape}, {size:.1f} MB on {self.device})"
        )


Operand = npt.ArrayLike | QTensor | PackedWeight


def shared(name: str) -> Products:
    """Return the device that products share, opened on first use and closed at exit."""
    if not isinstance(name, str):
        raise UnknownDevice(
            f"{name!r} is not a device name", remedy="use auto, or a name as in npurt.devices()"
        )
    return _shared(name)


@once
def _shared(name: str) -> Products:
    products = Products(open_device(name))
    atexit.register(products.close)
    return products


def report(device: str = "auto") -> Report:
    """Return what `matmul` did on *device* in this process: how often, and what was verified.

    Raises:
        DeviceNotFound: There is no such device.
    """
    return shared(device).report()


def pack(b: npt.ArrayLike | QTensor, dtype: str = "auto", *, device: str = "auto") -> PackedWeight:
    """Quantise *b* and lay it out for *device* once, to multiply by it many times.

    Args:
        b: Float ``[K, N]``, or a QTensor's transposed view ``w.T`` of shape ``(K, N)``.
        dtype: Format to quantise to: a name such as ``q8_0``, ``q4_0``, ``q4_k``, ``f16``; by
            default a QTensor's own, which keeps its codes, and ``q8_0`` for floats.  A QTensor of
            another format has its values quantised again.

    Raises:
        LayoutError: *b* is not 2-D, or K does not divide into blocks of the format.
        NumericsError: *b* holds NaN or infinity.
        UnsupportedOp: The device has no kernel for the format, or there is no such format.
    """
    products = shared(device)
    tensor = _finite(_quantised(b, dtype))
    return PackedWeight(products.device.pack(tensor, int16=None), products)


def _finite(tensor: QTensor) -> QTensor:
    """Return *tensor* ``[N, K]``, whose values must be finite."""
    row = tensor.first_not_finite()
    if row is not None:
        raise NumericsError(
            f"row {row[0]} of the weight [N, K] holds NaN or infinity",
            remedy="replace NaN and infinity before packing; a file that has them is damaged",
        )
    return tensor


def _quantised(b: npt.ArrayLike | QTensor, dtype: str) -> QTensor:
    if isinstance(b, QTensor):
        if b.ndim != 2 or not b.transposed:
            raise LayoutError(
                f"{b!r} is not a right operand", remedy="pass w.T, of shape (K, N), for w [N, K]"
            )
        if isinstance(dtype, str) and dtype.lower() in ("auto", b.dtype):
            return b.T
        return QTensor.quantize(b.T.dequantize(), encodable(dtype))
    array = _as_float(_as_array(b, "b"), "b")
    if array.ndim != 2:
        raise LayoutError(
            f"b has {array.ndim} axes; a weight has two, [K, N]",
            remedy="pack each matrix by itself",
        )
    fmt = encodable("q8_0" if dtype == "auto" else dtype)
    return QTensor.quantize(np.ascontiguousarray(array.T), fmt)


def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Array | None = None,
    device: str = "auto",
    verify: str | None = None,
) -> Array | np.generic:
    """Return ``a @ b`` as numpy defines it: ``[..., M, K] @ [..., K, N] -> [..., M, N]``.

    One-dimensional operands and batch dimensions behave as in `numpy.matmul`.  Products with
    quantised weights, and exact ones of int8, are verified: one that is wrong is computed again by
    plain kernels of the CPU, with a RuntimeWarning, and `report` says so.

    Args:
        a: Array, or QTensor, whose values are used.
        b: Array; or `PackedWeight`, or a QTensor's view ``w.T``, which is packed for this call.
        out: Array of the result's shape and dtype, written and returned.
        device: Where to multiply; a packed *b* is multiplied by where it is.
        verify: ``off``, ``sample`` (the first product of a weight, and one in a hundred after that)
            or ``always``; by default what `NPURT_VERIFY` says, else ``sample``.  Products of two
            float arrays are numpy's own, and not verified.

    Raises:
        LayoutError: Shapes or dtypes do not fit, or *b* is packed for another device; the message
            says what to do.
        NumericsError: *b* is of an integer format, and *a* or *b* holds NaN or infinity.
        UnsupportedOp: int8 sums of K > 131071 would not fit int32, or the device does not multiply
            arrays of these dtypes.
        SettingError: There is no such mode of verification.
        VerificationFailed: The product is wrong, and so is the CPU's.
    """
    how = mode(verify)
    if isinstance(b, PackedWeight):
        if device not in ("auto", b.device, b.weight.planned):
            raise LayoutError(
                f"b is packed for {b.device}, not for {device!r}",
                remedy=f"leave device away, or pack b with device={device!r}",
            )
        result = _packed(_left(a), b.products, b.weight, how)
    elif isinstance(b, QTensor) and b.transposed and b.format.block > 1:
        products = shared(device)
        weight = PackedWeight(products.device.pack(_finite(b.T), int16=None), products).weight
        result = _packed(_left(a), products, weight, how, once=True)
    else:
        result = _arrays(_left(a), _right(b), device, how)
    return _deliver(result, out)


def _left(a: Operand) -> Array:
    if isinstance(a, PackedWeight):
        raise LayoutError(
            "a packed weight can only be the right operand", remedy="pack the other one, or use .T"
        )
    return a.dequantize() if isinstance(a, QTensor) else _as_array(a, "a")


def _right(b: Operand) -> Array:
    assert not isinstance(b, PackedWeight)
    return b.dequantize() if isinstance(b, QTensor) else _as_array(b, "b")


def _as_array(x: Any, name: str) -> Array:
    """Return *x* as an array in native byte order, of a dtype that can be multiplied."""
    try:
        array = np.from_dlpack(x) if _only_dlpack(x) else np.asarray(x)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:  # a torch tensor's last
        raise LayoutError(
            f"{name} cannot be read as an array: {error}", remedy="pass a rectangular numpy array"
        ) from error
    if array.dtype != np.int8 and array.dtype.newbyteorder("=") not in FLOATS:
        raise LayoutError(
            f"{name} is {array.dtype}; npurt multiplies int8 and float16, 32, 64",
            remedy=f"convert it, for example {name}.astype(np.float32)",
        )
    if array.ndim == 0:
        raise LayoutError(
            f"{name} is a single number", remedy="use * to scale; matmul needs at least one axis"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _only_dlpack(x: Any) -> bool:
    return hasattr(x, "__dlpack__") and not hasattr(x, "__array__")


def _as_float(array: Array, name: str) -> F32:
    """Return float32; a float64 that would overflow is refused."""
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, copy=False)
    if array.dtype == np.float64 and (np.isinf(narrow) & np.isfinite(array)).any():
        raise NumericsError(
            f"{name} holds a value beyond float32, {np.abs(array[np.isfinite(array)]).max():.3g}",
            remedy="scale it down before multiplying",
        )
    return narrow


def _mismatch(a: tuple[int, ...], b: tuple[int, ...]) -> LayoutError:
    return LayoutError(
        f"shapes {a} and {b} do not multiply: a has K = {a[-1]}, b has {b[-2:][0]}",
        remedy="transpose an operand: a weight w of shape (N, K) multiplies as a @ w.T",
    )


def _packed(
    a: Array, products: Products, weight: Weight, how: Mode, *, once: bool = False
) -> Array:
    x, w = _as_float(a, "a"), weight.packed
    if x.shape[-1] != w.k:
        raise _mismatch(x.shape, (w.k, w.n))
    rows = np.ascontiguousarray(x).reshape(math.prod(x.shape[:-1]), w.k)
    if w.tensor.format.block > 1 and not np.isfinite(rows).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(rows))[0])
        raise NumericsError(
            f"a holds {rows[row, column]} in row {row}, column {column}, which int8 cannot",
            remedy="mend the input: look for what overflowed or divided by zero",
        )
    if len(rows) and w.n and w.k:
        y = products.matmul(rows, weight, how, once=once)
    else:
        y = np.zeros((len(rows), w.n), np.float32)
    return y.reshape(*x.shape[:-1], w.n)


def _arrays(a: Array, b: Array, device: str, how: Mode) -> Array:
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise _mismatch(a.shape, b.shape)
    exact = a.dtype == b.dtype == np.int8
    if not exact:
        a, b = _as_float(a, "a"), _as_float(b, "b")
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError as error:
        raise LayoutError(
            f"shapes {a.shape} and {b.shape} do not multiply: batch axes {left.shape[:-2]} and "
            f"{right.shape[:-2]} do not broadcast",
            remedy="make them equal from the last on, or 1 in one of the operands",
        ) from error
    shape = (*batch, left.shape[-2], right.shape[-1])
    y = _exact(left, right, shape, device, how) if exact else _float(left, right, device)
    if a.ndim == 1:
        y = y[..., 0, :]
    return np.asarray(y[..., 0] if b.ndim == 1 else y)


def _float(a: F32, b: F32, device: str) -> Array:
    """Multiply float arrays: by numpy's BLAS on the CPU, the best there is for them."""
    target = shared(device).device
    if not isinstance(target, CpuDevice):
        raise UnsupportedOp(
            f"{target.caps.name} multiplies packed weights only",
            remedy="pack b first: npurt.pack(b, 'q8_0', device=...)",
        )
    with np.errstate(all="ignore"):  # infinities and NaN are results like any other
        return np.asarray(np.matmul(a, b))


def _exact(
    a: Array, b: Array, shape: tuple[int, ...], device: str, how: Mode
) -> npt.NDArray[np.int32]:
    if a.shape[-1] > MAX_EXACT_K:
        raise UnsupportedOp(
            f"int8 sums over K = {a.shape[-1]} may not fit int32",
            remedy=f"split K into parts of at most {MAX_EXACT_K} and add them in int64",
        )
    products = shared(device)
    y = np.empty(shape, np.int32)
    if b.ndim == 2:  # one right operand: all rows at once
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        y[...] = products.matmul_i8(rows, b, how).reshape(shape)
        return y
    lefts = np.broadcast_to(a, (*shape[:-2], *a.shape[-2:]))
    rights = np.broadcast_to(b, (*shape[:-2], *b.shape[-2:]))
    for index in np.ndindex(*shape[:-2]):
        y[index] = products.matmul_i8(lefts[index], rights[index], how)
    return y


def _deliver(result: Array, out: Array | None) -> Array | np.generic:
    if out is None:
        return result if result.ndim else cast(np.generic, result[()])
    if not isinstance(out, np.ndarray) or (out.shape, out.dtype) != (result.shape, result.dtype):
        have = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise LayoutError(
            f"out is {have}, the result {result.dtype} {result.shape}",
            remedy="pass an array of exactly that dtype and shape, or leave out away",
        )
    if not out.flags.writeable:
        raise LayoutError("out is read-only", remedy="pass an array that can be written")
    out[...] = result
    return out
