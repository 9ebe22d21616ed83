"""What a caller's functions return, checked: logits, and whether a text ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, brief


def returned(logits: Any, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the *logits* that a logits processor returned, in float32.

    Raises:
        LayoutError: They are no numbers, or do not have *shape*.
    """
    try:
        with np.errstate(over="ignore"):  # what float32 does not hold is infinite
            changed: npt.NDArray[np.float32] = np.asarray(logits, np.float32)
        what = f"shape {changed.shape}, not {shape}"
    except (TypeError, ValueError):
        what = f"{brief(logits)}"
    else:
        if changed.shape == shape:
            return changed
    raise LayoutError(
        f"a logits processor returned {what}", remedy="return the logits that it got, changed"
    )


def says_end(criterion: Callable[..., Any], ids: npt.NDArray[np.intc], logits: Any) -> bool:
    """Return whether a stopping *criterion* ends the text before the token of *logits*.

    Raises:
        LayoutError: What it returned is neither true nor false, such as an array of several values.
    """
    said = criterion(ids, logits)
    try:
        return bool(said)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"a stopping criterion returned {brief(said)}", remedy="return True or False"
        ) from error


def unusable(what: str) -> NumericsError:
    """Return the error that the caller's changes spoil the logits: *what* is wrong with them."""
    return NumericsError(
        f"after the changes by logits_processor, logit_bias and penalties, {what}",
        remedy="leave at least one token with a finite logit, and none with NaN or +inf",
    )
