"""The line that the server logs about each request: method, path, status, time and tokens."""

import logging
import time
from contextvars import ContextVar

from starlette.types import Scope

CLOSED = 499  # nginx's status for a request whose client disconnected before the answer

log = logging.getLogger("npurt.serve").getChild("requests")
_line: ContextVar["RequestLine | None"] = ContextVar("line", default=None)


class RequestLine:
    """The line of a request, which is logged when the request ends.

    Answers to GET are logged at the level DEBUG, because monitoring and the page repeat them; so
    is 503, the answer while the model is loaded.  Other errors are logged at INFO.

    Attributes:
        status: The status of the answer; 0 before it begins.
    """

    def __init__(self, scope: Scope) -> None:
        self._asked = f"{scope['method']} {scope['path']}"
        self._reads = scope["method"] in ("GET", "HEAD", "OPTIONS")
        self._began = time.monotonic()
        self._figures: list[str] = []
        self.status = 0

    def begin(self) -> None:
        """Let `current` return this line in the present task, and in tasks that it starts."""
        _line.set(self)

    def add(self, figures: str) -> None:
        """Append *figures* to the line."""
        self._figures.append(figures)

    def end(self) -> None:
        """Log the line."""
        status = self.status or CLOSED
        usual = status < 400 or status == 503
        level = logging.DEBUG if self._reads and usual else logging.INFO
        if not log.isEnabledFor(level):
            return
        asked = "".join(c if c.isprintable() else "?" for c in self._asked[:200])
        figures = "".join(f"; {each}" for each in self._figures)
        log.log(level, "%s %d, %.2f s%s", asked, status, time.monotonic() - self._began, figures)


def current() -> RequestLine | None:
    """Return the line of the request that the present task answers; None outside a request."""
    return _line.get()


def refused(scope: Scope, status: int) -> None:
    """Log a request that was refused before an endpoint read it."""
    line = RequestLine(scope)
    line.status = status
    line.end()
