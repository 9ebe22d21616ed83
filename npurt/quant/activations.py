"""Quantise activations to int8, with one scale per 32 columns.

This is the specification for the kernels of all devices, which tests compare with it.  The method
is Q8_0 with float32 scales, except that it multiplies by ``127 / amax`` and rounds halves to even,
like vector instructions.
"""

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError
from npurt.quant.canonical import F32, I8

GROUP = 32  # elements per scale


@np.errstate(divide="ignore", over="ignore")
def quantize_activations(x: npt.NDArray[np.float32]) -> tuple[I8, F32]:
    """Return int8 codes ``[M, K]`` and float32 scales ``[M, K / 32]`` of *x*.

    Per block: ``amax = max |x|``, scale ``amax / 127``, code ``rint(x * (127 / amax))``, each
    operation in float32.  A block whose ``127 / amax`` is not finite (amax below 3.74e-37) is zero.

    Args:
        x: float32 ``[M, K]``, K a multiple of 32.

    Raises:
        LayoutError: *x* has another dtype or shape.
        NumericsError: *x* has a NaN or infinity.
    """
    if x.dtype != np.float32 or x.ndim != 2 or x.shape[1] % GROUP:
        raise LayoutError(
            f"activations must be float32 [M, K], K a multiple of {GROUP}, not {x.dtype} {x.shape}",
            remedy="convert to float32, reshape to 2-D and pad K with zeros",
        )
    finite = np.isfinite(x)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        raise not_finite(f"activation row {row}, column {column} is {x[row, column]}")
    m, k = x.shape
    blocks = x.reshape(m, k // GROUP, GROUP)
    amax = abs(blocks).max(axis=-1)
    inverse = np.float32(127) / amax
    zero = ~np.isfinite(inverse)
    inverse[zero] = 0
    scales = np.where(zero, np.float32(0), amax / np.float32(127))
    codes = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return codes.reshape(m, k), scales


def not_finite(what: str) -> NumericsError:
    """Return the error for NaN or infinity in activations; *what* is the message."""
    return NumericsError(
        what,
        remedy="replace NaN and infinity before the product; in a model, an op before it "
        "overflowed or divided by zero",
    )
