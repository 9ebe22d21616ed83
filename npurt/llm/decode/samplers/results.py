"""Check the results of a caller's functions: logits processors and stopping criteria."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError, NumericsError, brief


def returned(logits: Any, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the *logits* that a logits processor returned, converted to float32.

    Raises:
        LayoutError: *logits* are not numbers, or do not have *shape*.
    """
    try:
        with np.errstate(over="ignore"):  # numbers outside the range of float32 become infinite
            changed: npt.NDArray[np.float32] = np.asarray(logits, np.float32)
        what = f"shape {changed.shape}, not {shape}"
    except (TypeError, ValueError):
        what = f"{brief(logits)}"
    else:
        if changed.shape == shape:
            return changed
    raise LayoutError(
        f"a logits processor returned {what}", remedy="return logits of the shape of its argument"
    )


def says_end(criterion: Callable[..., Any], ids: npt.NDArray[np.intc], logits: Any) -> bool:
    """Return whether a stopping *criterion* ends the sequence before a token is sampled.

    Raises:
        LayoutError: The criterion's result, such as an array of several values, has no truth value.
    """
    said = criterion(ids, logits)
    try:
        return bool(said)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"a stopping criterion returned {brief(said)}", remedy="return True or False"
        ) from error


def unusable(what: str) -> NumericsError:
    """Return the error for logits that are unusable after the caller's changes.

    *what* says what is wrong with the logits.
    """
    return NumericsError(
        f"after the changes by logits_processor, logit_bias and penalties, {what}",
        remedy="leave at least one token with a finite logit, and none with NaN or +inf",
    )
