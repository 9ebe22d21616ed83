"""Convert arguments to numpy arrays: lists, and arrays of numpy and other libraries."""

from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.errors import LayoutError, NumericsError
from npurt.runtime.open import dlpack

Array = npt.NDArray[Any]

FLOATS = (np.float16, np.float32, np.float64)


def as_array(x: Any, name: str) -> Array:
    """Return *x* as an array in native byte order, with a dtype that npurt multiplies.

    bfloat16 becomes float32 without rounding.  Lists of integers become float64.

    Raises:
        LayoutError: *x*, the argument *name*, cannot be read as an array, or has another dtype.
    """
    try:
        array = _read(x)
    except (
        AttributeError,  # a JAX array inside jit, which has no values, raises this
        BufferError,
        RuntimeError,  # torch raises this
        TypeError,
        ValueError,
    ) as error:
        raise LayoutError(
            f"{name} cannot be read as an array: {error}",
            remedy="pass a rectangular numpy array in host memory; for a torch tensor t, "
            "t.detach().cpu()",
        ) from error
    if array.dtype.name == "bfloat16" or (isinstance(x, list | tuple) and array.dtype.kind in "iu"):
        array = array.astype(np.float32 if array.dtype.kind == "V" else np.float64)
    if array.dtype != np.int8 and array.dtype.newbyteorder("=") not in FLOATS:
        what = array.dtype if isinstance(x, np.ndarray | np.generic) else type(x).__name__
        narrow = array.dtype.kind == "V" and not issubclass(array.dtype.type, np.void)  # ml_dtypes
        if narrow or array.dtype.kind in "biufc":
            raise LayoutError(
                f"{name} is {array.dtype}; npurt multiplies int8, bfloat16, float16, float32 and "
                "float64",
                remedy="multiply its real and imaginary parts separately"
                if array.dtype.kind == "c"
                else f"convert it, for example np.asarray({name}, np.float32)",
            )
        if array.dtype == object and isinstance(x, np.ndarray):
            raise LayoutError(
                f"{name} is an array of Python objects, not of numbers of one type",
                remedy=f"convert it, for example np.asarray({name}, np.float32)",
            )
        raise LayoutError(
            f"{name} is {what}, which holds no numbers to multiply",
            remedy="pass an array of int8 or of floats",
        )
    if array.ndim == 0:
        raise LayoutError(
            f"{name} is a single number", remedy="use * to scale; matmul needs at least one axis"
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read(x: Any) -> Array:
    if not hasattr(x, "__dlpack__"):
        return np.asarray(x)
    try:
        return np.asarray(x) if hasattr(x, "__array__") else np.from_dlpack(x)
    except (TypeError, BufferError, RuntimeError):  # numpy cannot read bfloat16, e.g. of torch
        widened = dlpack.bfloat16(x)
        if widened is None:
            raise
        return widened


def as_float(array: Array, name: str) -> F32:
    """Return *array* in float32.

    Raises:
        NumericsError: *array*, the argument *name*, holds a finite value beyond float32.
    """
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32, copy=False)
    if array.dtype == np.float64 and (np.isinf(narrow) & np.isfinite(array)).any():
        raise NumericsError(
            f"{name} holds a value beyond float32, {np.abs(array[np.isfinite(array)]).max():.3g}",
            remedy="scale it down before multiplying",
        )
    return narrow
