"""Measure the durations of completions: in the queue, of the prompt, of the generated tokens."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from npurt.serve.engine.protocol import SequenceEvent


class CompletionTiming:
    """The times of one completion, in seconds of `time.monotonic`; None: not yet.

    Attributes:
        asked: When the completion was requested.
        began: When the engine began to evaluate the prompt.
        first, last: When the first and the last token arrived.
    """

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.began: float | None = None
        self.first: float | None = None
        self.last: float | None = None

    def take(self, event: SequenceEvent) -> None:
        """Take note of an event that has just arrived."""
        now = time.monotonic()
        if self.began is None and (event.seconds or event.read or event.tokens):
            self.began = max(self.asked, now - event.seconds)
        if event.tokens:
            self.last = now
            self.first = self.first or now

    @property
    def queue(self) -> float:
        """Seconds in the queue."""
        return (self.began or time.monotonic()) - self.asked

    @property
    def prompt(self) -> float:
        """Seconds of the evaluation of the prompt, so far or until the first token."""
        return (self.first or time.monotonic()) - self.began if self.began else 0.0

    @property
    def generation(self) -> float:
        """Seconds between the first and the last token."""
        return self.last - self.first if self.last and self.first else 0.0


class Timed(Protocol):
    """A completion with its times; see `generation.Choice`."""

    timing: CompletionTiming
    count: int


def timings(choices: Sequence[Timed], prompt_tokens: int, cached: int) -> dict[str, Any]:
    """Return llama.cpp's object ``timings`` of *choices*, with npurt's field ``queue_ms``.

    A rate is null if nothing was measured: a single token has no duration.  The durations of
    several choices begin with the first one and end with the last one.

    Args:
        prompt_tokens: Number of tokens of the prompts.
        cached: Number of these that were in the prefix cache.
    """
    times = [choice.timing for choice in choices]
    prompt = max(each.prompt for each in times)
    firsts = [each.first for each in times if each.first]
    lasts = [each.last for each in times if each.last]
    spent = max(lasts) - min(firsts) if firsts else 0.0
    read, decoded = prompt_tokens - cached, sum(max(0, choice.count - 1) for choice in choices)
    return {
        "cache_n": cached,
        "queue_ms": 1e3 * min(each.queue for each in times),
        "prompt_n": read,
        "prompt_ms": 1e3 * prompt,
        "prompt_per_token_ms": _ratio(1e3 * prompt, read),
        "prompt_per_second": _ratio(read, prompt),
        "predicted_n": sum(choice.count for choice in choices),
        "predicted_ms": 1e3 * spent,
        "predicted_per_token_ms": _ratio(1e3 * spent, decoded),
        "predicted_per_second": _ratio(decoded, spent),
    }


def _ratio(amount: float, by: float) -> float | None:
    return amount / by if amount and by else None
