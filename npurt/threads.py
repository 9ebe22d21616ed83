"""Start threads; an error of the system becomes npurt's."""

import threading

from npurt.errors import NpurtError


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
