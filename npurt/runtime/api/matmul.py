"""Multiply arrays and quantised weights on a device, with the semantics of `numpy.matmul`.

Dtypes: int8 @ int8 gives exact int32.  Otherwise both operands and the result are float32: float16,
bfloat16 and int8 are widened, float64 is rounded.  If one operand is quantised in an integer
format, the other is rounded to int8, with one scale for each 32 columns of K.

NPUs multiply only packed weights, except that the RK3588 also multiplies two int8 arrays.  The CPU
multiplies all operands.
"""

import math
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, MAX_EXACT_K
from npurt.device.verify import Mode, mode
from npurt.errors import LayoutError, NumericsError, UnsupportedOp, brief
from npurt.quant.array import QuantisedArray
from npurt.quant.tensor import QTensor
from npurt.runtime.api import packed_weight
from npurt.runtime.api.packed_weight import PackedWeight, pack, report
from npurt.runtime.api.products import Products, Weight
from npurt.runtime.open.arrays import as_array, as_float
from npurt.runtime.open.devices import is_cpu

__all__ = ["PackedWeight", "matmul", "pack", "report"]

Array = npt.NDArray[Any]
Operand = npt.ArrayLike | QTensor | PackedWeight


Out = TypeVar("Out", bound=Array)


@overload
def matmul(
    a: Operand, b: Operand, *, out: Out, device: str = "auto", verify: str | None = None
) -> Out: ...


@overload
def matmul(
    a: npt.NDArray[np.int8],
    b: npt.NDArray[np.int8],
    *,
    out: None = None,
    device: str = "auto",
    verify: str | None = None,
) -> npt.NDArray[np.int32]: ...


@overload
def matmul(
    a: Operand, b: Operand, *, out: None = None, device: str = "auto", verify: str | None = None
) -> F32: ...


def matmul(
    a: Operand,
    b: Operand,
    *,
    out: Array | None = None,
    device: str = "auto",
    verify: str | None = None,
) -> Any:
    """Return ``a @ b`` as numpy defines it: ``[..., M, K] @ [..., K, N] -> [..., M, N]``.

    One-dimensional operands and batch dimensions behave as in `numpy.matmul`.  Products with
    quantised weights, and exact int8 products, are verified.  If a product is wrong, plain kernels
    of the CPU compute it again, with a RuntimeWarning and a note in `report`.

    For a weight w, the operators ``a @ w`` and ``w.T @ b`` call this function.

    Args:
        a: Array; or a quantised weight ``[N, K]``: ``w.T`` of a `PackedWeight`, or a QTensor.
        b: Array; or a quantised weight ``[K, N]``: a `PackedWeight`, or ``w.T`` of a QTensor.  A
            QTensor is packed for this call.  A QTensor of F32, F16 or BF16 may be a left or a right
            operand; it is decoded to an array if it is a stack or if both operands are weights.
        out: Array of the result's shape and dtype, written and returned.
        device: Device that multiplies; for a packed weight, ``auto`` or the weight's device.
        verify: ``off``, ``sample`` (the first product of a weight, and 1 % of the later products)
            or ``always``; by default the value of `NPURT_VERIFY`, else ``sample``.  numpy
            multiplies two float arrays, without verification.

    Raises:
        LayoutError: Shapes or dtypes do not fit, or a weight is packed for another device.
        NumericsError: A weight has an integer format, and the weight or the other operand holds NaN
            or infinity.
        UnsupportedOp: int8 sums of K > 131071 would not fit int32, or the device does not multiply
            arrays of these dtypes.
        SettingError: *verify* is not a mode of verification.
        VerificationFailed: The product is wrong on the device and on the CPU.
    """
    how = mode(verify)
    left, right = _operand(a, "a"), _operand(b, "b")
    if isinstance(right, QuantisedArray):
        left = _values_of_floats(left)
    if isinstance(left, QuantisedArray):
        right = _values_of_floats(right)
    if isinstance(left, QuantisedArray):
        result = _weight_first(left, right, device, how)
    elif isinstance(right, QuantisedArray):
        result = _weight_last(left, right, device, how)
    else:
        result = _arrays(left, right, device, how)
    return _deliver(result, out)


def _operand(x: Operand, name: str) -> Array | QuantisedArray:
    """Return a weight unchanged, and any other operand as an array."""
    if isinstance(x, QuantisedArray):
        return _values_of_floats(x) if x.ndim == 3 else x
    return as_array(x, name)


def _values_of_floats(x: Array | QuantisedArray) -> Array | QuantisedArray:
    """Return the values of a QTensor of floats, and any other operand unchanged."""
    return x.dequantize() if isinstance(x, QTensor) and x.format.block == 1 else x


def _weight_last(a: Array, w: QuantisedArray, device: str, how: Mode) -> Array:
    """Return ``a @ w``."""
    w = w.with_sum_axis(0)
    if w.ndim == 3 or w.sum_axis != 0:
        turned = "a @ w, without the .T" if _is_view(w) else "a @ w.T"
        raise LayoutError(
            f"{w!r} cannot be a right operand: its blocks lie along axis {w.sum_axis}",
            remedy=_how_to_multiply(w, a.shape[-1], turned),
        )
    if a.shape[-1] != w.shape[0]:
        raise _mismatch(a.shape, w.shape, w)
    return _times(a, "a", w, device, how)


def _weight_first(w: QuantisedArray, b: Array | QuantisedArray, device: str, how: Mode) -> Array:
    """Return ``w @ b``, which is ``(b.T @ w.T).T``."""
    if isinstance(b, QuantisedArray):
        raise LayoutError(
            f"{w!r} and {b!r} are both quantised",
            remedy="decode one of them, for example a.dequantize() @ b",
        )
    w = w.with_sum_axis(w.ndim - 1)
    if w.ndim == 3 or w.sum_axis != w.ndim - 1:
        turned = "w @ b, without the .T" if _is_view(w) else "w.T @ b"
        raise LayoutError(
            f"{w!r} cannot be a left operand, only a right operand: its blocks lie along axis "
            f"{w.sum_axis}",
            remedy=_how_to_multiply(w, b.shape[-2:][0], turned),
        )
    if b.shape[-2:][0] != w.shape[-1]:
        raise _mismatch(w.shape, b.shape)
    if b.ndim == 1:
        return _times(b, "b", w.T, device, how)
    y = _times(b.swapaxes(-1, -2), "b", w.T, device, how)
    return y.swapaxes(-1, -2) if w.ndim == 2 else y


def _times(x: Array, name: str, w: QuantisedArray, device: str, how: Mode) -> Array:
    """Return ``x @ w`` for a weight ``[K, N]`` or ``[K]``; the caller has checked K.

    Args:
        name: The argument of `matmul` that x comes from; the caller has transposed ``b``.
    """
    if isinstance(w, PackedWeight):
        if not isinstance(device, str) or device not in ("auto", w.device, w.weight.planned):
            raise LayoutError(
                f"the weight is packed for {w.device}, not for {brief(device)}",
                remedy="omit device"
                + (f", or use npurt.pack(w, device={device!r})" if isinstance(device, str) else ""),
            )
        return _packed(x, name, w.products, w.weight, how)
    assert isinstance(w, QTensor)
    products = packed_weight.shared(device)
    matrix = packed_weight.finite(w.T if w.ndim == 2 else QTensor(w.blocks[None], w.format))
    weight = PackedWeight(products.device.pack(matrix, int16=None), products).weight
    y = _packed(x, name, products, weight, how, once=True)
    return y if w.ndim == 2 else y[..., 0]


def _is_view(w: QuantisedArray) -> bool:
    """Return whether w is the ``.T`` of another weight."""
    return isinstance(w, QTensor | PackedWeight) and w.transposed


def _how_to_multiply(w: QuantisedArray, k: int, turned: str) -> str:
    """Return the remedy for a weight on the wrong side of a product.

    Args:
        k: The length of the other operand along the axis that is summed.
        turned: The product with the weight transposed, as text.
    """
    if w.ndim == 3:
        return "multiply by each matrix of a stack: a @ w[i].T, or w[i] @ b"
    if k == w.shape[w.sum_axis]:
        return f"multiply {turned}"
    return "multiply by the array that its dequantize() returns"


def _mismatch(
    a: tuple[int, ...], b: tuple[int, ...], weight: QuantisedArray | None = None
) -> LayoutError:
    k, other = a[-1], b[-2:][0]
    transposed = len(b) > 1 and b[-1] == k
    if transposed and weight is not None:
        return LayoutError(
            f"shapes {a} and {b} do not multiply: a has K = {k}, the weight K = {other}",
            remedy="to sum along the other axis of the weight, decode and transpose it: "
            "dequantize().T",
        )
    return LayoutError(
        f"shapes {a} and {b} do not multiply: a has K = {k}, b has {other}",
        remedy="transpose b: a weight w of shape (N, K) multiplies as a @ w.T"
        if transposed
        else "make the last axis of a as long as the last but one of b",
    )


def _packed(
    a: Array, name: str, products: Products, weight: Weight, how: Mode, *, once: bool = False
) -> Array:
    x, w = as_float(a, name), weight.packed
    rows = np.ascontiguousarray(x).reshape(math.prod(x.shape[:-1]), w.k)
    if w.tensor.format.block > 1 and not np.isfinite(rows).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(rows))[0])
        value = rows[row, column]
        if name == "b":
            row, column = column, row
        raise NumericsError(
            f"{name} holds {value} in row {row}, column {column}; products with quantised "
            "weights need finite numbers",
            remedy="find the operation on the input that overflowed or divided by zero",
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
        a, b = as_float(a, "a"), as_float(b, "b")
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError as error:
        raise LayoutError(
            f"shapes {a.shape} and {b.shape} do not multiply: batch axes {left.shape[:-2]} and "
            f"{right.shape[:-2]} do not broadcast",
            remedy="make the batch axes equal, counted from the last, or 1 in one operand",
        ) from error
    shape = (*batch, left.shape[-2], right.shape[-1])
    y = _exact(left, right, shape, device, how) if exact else _float(left, right, device)
    if a.ndim == 1:
        y = y[..., 0, :]
    return np.asarray(y[..., 0] if b.ndim == 1 else y)


def _float(a: F32, b: F32, device: str) -> Array:
    """Multiply float arrays with numpy's BLAS, the fastest way on the CPU."""
    target = packed_weight.shared(device).device
    if not is_cpu(target):
        raise UnsupportedOp(
            f"{target.caps.name} multiplies packed weights only",
            remedy=f"pack b first: npurt.pack(b, 'q8_0', device={target.caps.name!r})",
        )
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        return np.asarray(np.matmul(a, b))


def _exact(
    a: Array, b: Array, shape: tuple[int, ...], device: str, how: Mode
) -> npt.NDArray[np.int32]:
    if a.shape[-1] > MAX_EXACT_K:
        raise UnsupportedOp(
            f"int8 sums over K = {a.shape[-1]} may not fit int32",
            remedy=f"split K into parts of at most {MAX_EXACT_K} and add them in int64",
        )
    products = packed_weight.shared(device)
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
            remedy="pass an array with the result's dtype and shape, or omit out",
        )
    if not out.flags.writeable:
        raise LayoutError("out is read-only", remedy="pass a writeable array")
    out[...] = result
    return out
