"""The handle of a request to an engine, for the thread that submitted it."""

import copy
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.engine.events import Event, Usage


@dataclass(frozen=True, slots=True)
class Result:
    """A completion that has ended; the attributes are those of `Event`."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: str
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Request:
    """The handle of a request: an iterator of its events, for one thread.

    A request is cancelled when it is garbage-collected, unless the engine has *on_step*.

    Args:
        id: The request id in the engine.
        cancel: A function that cancels the request.
        require: A function that raises an error if no event can arrive in this process.

    Attributes:
        id: As in the arguments.
    """

    def __init__(
        self,
        id: int,
        cancel: Callable[["Request"], None],
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = id
        self._cancel = cancel
        self._require = require
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._taken: list[Event] = []

    def put(self, event: Event) -> None:
        """Add an event.  The engine calls this."""
        if event.tokens or event.text or event.finish or event.prompt_logprobs:
            self._events.put(event)

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they arrive, up to the event with *finish*.

        Raises:
            Exception: The exception that ended the request: see `Event.error`.
            SettingError: This process was forked from the one that opened the engine.
        """
        while not (self._taken and self._taken[-1].finish):
            self._require()
            self._taken.append(self._events.get())
            if self._taken[-1].error is None:
                yield self._taken[-1]
        if error := self._taken[-1].error:
            raise _copied(error)  # a traceback's frames would keep this request alive

    def cancel(self) -> None:
        """End the request.  The engine frees its rows and pages before the next step."""
        self._cancel(self)

    def result(self) -> Result:
        """Wait for the end; return the whole completion.

        Raises:
            Exception: The exception that ended the request: see `Event.error`.
        """
        for _ in self:
            pass
        events, usage = self._taken, self._taken[-1].usage
        return Result(
            tuple(token for event in events for token in event.tokens),
            "".join(event.text for event in events),
            tuple(each for event in events for each in event.logprobs),
            events[-1].finish,
            usage or Usage(0),
            tuple(each for event in events for each in event.prompt_logprobs),
        )

    def text(self) -> str:
        """Wait for the end; return the text of the completion.  Raises as `result` does."""
        return self.result().text


def _copied(error: BaseException) -> BaseException:
    """Return a copy of *error*, or *error* itself if it cannot be copied."""
    try:
        found = copy.copy(error)
    except Exception:  # noqa: BLE001  raised by a caller's exception class
        return error
    if type(found) is not type(error):
        return error
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    return found
