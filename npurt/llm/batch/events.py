"""What an engine tells of its requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from npurt.llm.decode.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request.

    Attributes:
        prompt: Tokens of the prompt.
        cached: Those of them that had been evaluated for another request.
        generated: Tokens of the text.
        drafted: Draft tokens that were verified.
        accepted: Draft tokens that were right.
    """

    prompt: int
    cached: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """What a step did for one request.

    Attributes:
        id: Of the request.
        tokens: New tokens of the text.
        text: New text, as far as it is final; with *echo*, the first event has the prompt before.
        logprobs: Of the new tokens, if wanted.
        finish: "" while the text goes on.  ``"end"``: an end token; ``"stop"``: a stop text or id;
            ``"length"``: *max_tokens*; ``"context"``: the context is full; ``"cancelled"``,
            ``"deadline"``; ``"error"``: see *error*.
        error: What ended the request.
        read: How many tokens of the prompt have been evaluated.
        usage: With *finish*.
        cached: How many tokens of the prompt had been evaluated for another request.
        prompt_logprobs: Of the next tokens of the prompt, from the second one on, if wanted.
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


@dataclass(slots=True)
class Counts:
    """Counts of an engine since it began.

    Attributes:
        steps: Runs of the model.
        rows: Tokens that they evaluated.
        generated: Tokens of texts.
        prompt: Tokens of prompts.
        cached: Those of them that had been evaluated for another request.
        hits: Requests with such tokens.
        misses: Requests without.
        drafted: Draft tokens that were verified.
        accepted: Draft tokens that were right.
        preempted: How often a request gave its pages to older ones.
        lost: How often a device lost all states.
        finished: Requests that came to their end.
        seconds: Time in runs of the model.
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
        running: Requests that are evaluated.
        waiting: Requests that wait for pages or for another to end.
        page: Positions of a page of keys and values; 0 where the device has no pages.
        pages: Pages that there are.
        used: Pages that running requests and kept prefixes have.
        prefixes: Texts that are kept for requests that begin with the same tokens.
        counts: See `Counts`.
    """

    running: int
    waiting: int
    page: int
    pages: int
    used: int
    prefixes: int
    counts: Counts
