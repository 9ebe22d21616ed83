"""Start threads; an error of the system becomes npurt's."""

import threading

from npurt.errors import NpurtError, SettingError

MIN_STACK = 128 << 10  # bytes; opening a model takes between 64 and 96 KiB


def require_stack() -> None:
    """Raise an error if new threads get too small a stack: Python would end by a signal.

    Raises:
        SettingError: `threading.stack_size()` is below `MIN_STACK`.
    """
    if 0 < (size := threading.stack_size()) < MIN_STACK:
        raise SettingError(
            f"threading.stack_size() is {size >> 10} KiB, too little to open a model",
            remedy=f"call threading.stack_size({MIN_STACK >> 10} << 10) or more, or 0, before "
            "starting threads",
        )


def start(thread: threading.Thread) -> None:
    """Start *thread*.

    Raises:
        NpurtError: The system allows no further thread.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise NpurtError(
            f"{thread.name}: {error}",
            remedy="close other programs, or raise the limit that `ulimit -u` shows",
        ) from error
