"""What the front and an engine say to each other.

A message is a frame: four bytes of length, big endian, then JSON ``[name, value of each field]``.
The front sends `Open` first, and then `Submit`, `Cancel` and `AskStats`; the engine answers `Open`
with `Ready` or `Failed`, and then sends a `Step` for each step, and `Stats` when asked.

The tokens of a sequence are a function of `Submit` alone.  So a front that lost an engine submits a
sequence again, with the tokens that it has, and the text goes on as if nothing had happened.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from npurt.errors import NpurtError

VERSION = 1
HEADER = 4  # bytes of a length
MAX_FRAME = 64 << 20  # bytes; a prompt of a million tokens has 8 MB

ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes one for each call

Logprob: TypeAlias = tuple[float, Sequence[tuple[int, float]]]  # of a token, and of the likeliest


class ProtocolError(NpurtError):
    """The other side sent what is no message."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a model; *options* are the arguments of `npurt.Engine` besides its path."""

    version: int
    path: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Submit:
    """Continue *tokens*.

    Attributes:
        id: Of the sequence; the front never uses one twice.
        tokens: The prompt, then what was generated before.
        prompt: How many of *tokens* are the prompt's.
        sampling: Fields of `Sampling`, with a seed.
        max_tokens: The most tokens to generate, with those before; None: no limit.
        stop_ids: Ids that end the text and are not part of it.
        ignore_eos: Never sample an end token.
        min_tokens: Sample no end token before so many tokens.
        top_logprobs: How many of the likeliest tokens to report with each; None: nothing.
        salt: Prompts of different salts share no cache.
        grammar, response_format: What the text must be; see `Llama.generate`.
        lark: The same as a grammar in Lark, with llguidance's extensions.
        prompt_logprobs: Whether to report the log probabilities of the prompt's tokens as well.
        embed: Embed the tokens instead, which are all of a text.
    """

    id: int
    tokens: Sequence[int]
    prompt: int
    sampling: Mapping[str, Any]
    max_tokens: int | None = None
    stop_ids: Sequence[int] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    top_logprobs: int | None = None
    salt: str = ""
    grammar: str | None = None
    response_format: Mapping[str, Any] | None = None
    embed: bool = False
    lark: str | None = None
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the sequence *id*."""

    id: int


@dataclass(frozen=True, slots=True)
class AskStats:
    """Send `Stats`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is open.

    Attributes:
        version: Of this protocol.
        n_ctx: The most tokens of a sequence.
        sequences: How many run at a time.
        device: Where products run.
    """

    version: int
    n_ctx: int
    sequences: int
    device: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be opened."""

    what: str
    remedy: str


@dataclass(slots=True)  # one that is frozen takes ten times as long to make
class Event:
    """What a step did for one sequence.

    Attributes:
        id: Of the sequence.
        tokens: The new tokens.
        finish: How it ended: ``"end"``, ``"stop"`` (a stop id), ``"length"``, ``"context"``,
            ``"refused"`` (what was asked for makes no sense), ``"unavailable"`` (there is no
            engine) or ``"error"``; None: it goes on.
        logprobs: Of the new tokens, if wanted.
        read: How many tokens of the prompt have been read.
        cached: How many of these were in the cache.
        error: What went wrong, and a remedy, with the last three.
        vector: The embedding: float32, little endian, in base64.
        prompt_logprobs: Of the next tokens of the prompt, from its second one on, if wanted.
    """

    id: int
    tokens: Sequence[int] = ()
    finish: str | None = None
    logprobs: Sequence[Logprob] = ()
    read: int = 0
    cached: int = 0
    error: tuple[str, str] | None = None
    vector: str | None = None
    prompt_logprobs: Sequence[Logprob] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did for all sequences that it changed."""

    events: Sequence[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of the engine since it started, by name."""

    values: Mapping[str, float]


Message: TypeAlias = Open | Submit | Cancel | AskStats | Ready | Failed | Step | Stats
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Open, Submit, Cancel, AskStats, Ready, Failed, Step, Stats)
}
NAMES: dict[type[Any], list[str]] = {}
for _kind in (*KINDS.values(), Event):
    NAMES[_kind] = [each.name for each in fields(_kind)]


def frame(message: Message) -> bytes:
    """Return *message* as a frame.

    Raises:
        ProtocolError: It is larger than `MAX_FRAME`.
    """
    values = _values(message)
    if isinstance(message, Step):
        values = [[_values(event) for event in message.events]]
    data = ENCODE([type(message).__name__, *values]).encode()
    return check_length(len(data)).to_bytes(HEADER, "big") + data


def length(header: bytes) -> int:
    """Return how many bytes follow *header*, the first `HEADER` bytes of a frame.

    Raises:
        ProtocolError: They are more than `MAX_FRAME`.
    """
    return check_length(int.from_bytes(header, "big"))


def check_length(count: int) -> int:
    """Return *count*, the bytes of a message, or raise ProtocolError if they are too many."""
    if count > MAX_FRAME:
        raise ProtocolError(
            f"a message has {count} bytes, above {MAX_FRAME}", remedy="send a shorter prompt"
        )
    return count


def parse(data: bytes) -> Message:
    """Return the message in *data*, a frame without its header.

    Raises:
        ProtocolError: It is none.
    """
    try:
        name, *values = json.loads(data)
        message: Message = _made(KINDS[name], values)
        if isinstance(message, Step):
            return Step([_made(Event, each) for each in message.events])
        return message
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(
            f"{data[:60]!r} is no message of version {VERSION}: {error!r:.100}",
            remedy="run the same npurt on both sides",
        ) from error


def _values(message: Any) -> list[Any]:
    return [getattr(message, name) for name in NAMES[type(message)]]


def _made(kind: type[Any], values: Any) -> Any:
    if not isinstance(values, list) or len(values) != len(NAMES[kind]):
        raise ValueError(f"{kind.__name__} has {len(NAMES[kind])} values")
    return kind(*values)
