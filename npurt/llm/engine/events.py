"""Events and statistics that an engine reports."""

from collections.abc import Sequence
from dataclasses import dataclass

from npurt.llm.decode.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens of a request.

    Attributes:
        prompt: Prompt tokens.
        cached: Prompt tokens that had been evaluated for another request.
        generated: Generated tokens.
        drafted: Draft tokens that were verified.
        accepted: Draft tokens that were accepted.
    """

    prompt: int
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """The result of a step for one request.

    Attributes:
        id: The id of the request.
        tokens: New tokens of the completion.
        text: New final text of the completion; with *echo*, the first event begins with the prompt.
        logprobs: Log probabilities of the new tokens, if the request wants them.
        finish: "" until the completion ends.  Then ``"end"``: an end token; ``"stop"``: a stop text
            or stop id; ``"length"``: *max_tokens*; ``"context"``: the context is full;
            ``"cancelled"``; ``"deadline"``; ``"error"``: see *error*.
        error: The exception that ended the request; otherwise None.
        read: The number of prompt tokens that have been evaluated.
        usage: The numbers of tokens of the request, in its last event; otherwise None.
        cached: The number of prompt tokens that had been evaluated for another request.
        prompt_logprobs: Log probabilities of prompt tokens evaluated in the step, from the second
            token of the prompt on, if the request wants them.
        seconds: Seconds since the evaluation of the request began, without its time in the queue.
    """

    id: int
    tokens: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()
    finish: str = ""
    error: BaseException | None = None
    read: int = 0
    usage: Usage | None = None
    cached: int = 0
    prompt_logprobs: Sequence[TokenLogprob] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Counts:
    """Counts of an engine since it was opened.

    Attributes:
        steps: Runs of the model.
        rows: Rows of all runs, one for each evaluated token.
        generated: Generated tokens.
        prompt: Prompt tokens.
        cached: Prompt tokens that had been evaluated for another request.
        hits: Requests with cached prompt tokens.
        misses: Requests without cached prompt tokens.
        drafted: Draft tokens that were verified.
        accepted: Draft tokens that were accepted.
        preempted: The number of preemptions.
        lost: How often a device failed and lost the states of all sequences.
        finished: Requests that have ended.
        seconds: Seconds of all runs of the model.
    """

    steps: int = 0
    rows: int = 0
    generated: int = 0
    prompt: int = 0
    cached: int = 0
    hits: int = 0
    misses: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    lost: int = 0
    finished: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of an engine.

    Attributes:
        running: Requests that are being evaluated.
        waiting: Requests that wait for pages, or for another request to end.
        page: Positions of a page of the KV cache; 0 if the device has no pages.
        pages: Pages in total.
        used: Pages of running requests and of cached prefixes.
        prefixes: Cached prefixes.
        counts: See `Counts`.
    """

    running: int
    waiting: int
    page: int
    pages: int
    used: int
    prefixes: int
    counts: Counts
