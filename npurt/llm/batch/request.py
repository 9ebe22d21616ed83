"""A request to an engine, for the thread that made it."""

import copy
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from npurt.llm.batch.events import Event, Usage
from npurt.llm.decode.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Result:
    """A text that has ended; attributes as in `Event`."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish: str
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Request:
    """A request to an engine: an iterator of its events, for one thread.

    A request that is dropped is cancelled, unless the engine's *on_step* gets its events.

    Args:
        id: Its number in the engine.
        cancel: Cancels it.

    Attributes:
        id: As given.
    """

    def __init__(self, id: int, cancel: Callable[["Request"], None]) -> None:
        self.id = id
        self._cancel = cancel
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._taken: list[Event] = []

    def put(self, event: Event) -> None:
        """Add an event; the engine does that."""
        if event.tokens or event.text or event.finish or event.prompt_logprobs:
            self._events.put(event)

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they come, up to the one with *finish*.

        Raises:
            Exception: What ended the request: see `Event.error`.
        """
        while not (self._taken and self._taken[-1].finish):
            self._taken.append(self._events.get())
            if self._taken[-1].error is None:
                yield self._taken[-1]
        if error := self._taken[-1].error:
            raise _copied(error)  # whose traceback has frames of callers, which have the request

    def cancel(self) -> None:
        """End the text; the engine frees its rows before the next step, and its pages."""
        self._cancel(self)

    def result(self) -> Result:
        """Wait for the end; return all of the text.

        Raises:
            Exception: What ended the request: see `Event.error`.
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
        """Wait for the end; return the text.  Raises as `result` does."""
        return self.result().text


def _copied(error: BaseException) -> BaseException:
    """Return an error like *error*; itself if its class makes none of its arguments."""
    try:
        found = copy.copy(error)
    except Exception:  # noqa: BLE001  of the class of a caller
        return error
    if type(found) is not type(error):
        return error
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    return found
