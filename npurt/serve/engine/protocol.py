"""Messages between the front and an engine.

A message is a frame: four bytes of length, big endian, then JSON ``[name, value of each field]``.
The front sends `Open` first, and then `Submit`, `Cancel` and `AskStats`; the engine answers `Open`
with `Ready` or `Failed`, and then sends a `StepEvents` for each step, and `EngineStats` for each
`AskStats`.

The tokens of a sequence are a function of `Submit` and `Ready.identity` alone.  So if an engine is
lost, the front submits the sequence to a new engine of the same identity, with the tokens generated
so far, and the new engine generates the same next tokens.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from npurt.errors import NpurtError

VERSION = 2
HEADER = 4  # bytes of the length field
MODEL = "the model"  # the name of the model's file in `Ready.identity`
MAX_FRAME = 64 << 20  # bytes; a prompt of a million tokens has 8 MB

# json.dumps would make a new encoder for each call.
ENCODE = json.JSONEncoder(separators=(",", ":")).encode

# A token's log probability, and (id, log probability) of the most likely tokens at its position.
Logprob: TypeAlias = tuple[float, Sequence[tuple[int, float]]]


class ProtocolError(NpurtError):
    """The other side sent data that is not a valid message."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a model; *options* are the arguments of `npurt.Engine` besides its path."""

    version: int
    path: str
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a sequence: continue *tokens*, or embed them.

    Attributes:
        id: The sequence's id; the front uses each id once.
        tokens: The prompt, then the tokens that another engine generated before.
        prompt: Number of *tokens* that belong to the prompt.
        sampling: Fields of `Sampling`, with a seed.
        max_tokens: Upper bound on generated tokens, including those in *tokens*; None: no limit.
        stop_ids: Token ids that end the completion and are not part of it.
        ignore_eos: Never sample an end token.
        min_tokens: Minimum number of tokens before an end token may be sampled.
        top_logprobs: Number of most likely tokens to report with each token's log probability;
            None: report no log probabilities.
        salt: Sequences with different salts share no cached prefix.
        grammar, response_format: Constraint of the completion; see `Llama.generate`.
        lark: A constraint as a grammar in Lark, with llguidance's extensions.
        prompt_logprobs: Whether to report the log probabilities of the prompt's tokens as well.
        embed: Compute the embedding of *tokens*, and generate nothing.
        normalize: Scale the embedding to length 1.
        rank: Compute a reranker's score of *tokens*, a pair of texts, as the embedding.
        second: Position of the second text of the pair, if it is a segment of its own; else 0.
        scales: The scale of each LoRA adapter; None: the scales in `Open`.
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
    normalize: bool = True
    rank: bool = False
    second: int = 0
    scales: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the sequence *id* without further events."""

    id: int


@dataclass(frozen=True, slots=True)
class AskStats:
    """Ask the engine for `EngineStats`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is open.

    Attributes:
        version: The engine's version of this protocol.
        n_ctx: Upper bound on the tokens of a sequence.
        sequences: Number of sequences that run at the same time.
        device: Name of the device that computes the matrix products.
        identity: The identity of each opened file, and npurt's version, by name.  Tokens depend on
            these, so that only an engine with the same ones continues the sequences of another.
    """

    version: int
    n_ctx: int
    sequences: int
    device: str
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be opened."""

    what: str
    remedy: str


@dataclass(slots=True)  # not frozen: a frozen dataclass takes ten times as long to construct
class SequenceEvent:
    """The result of a step for one sequence.

    Attributes:
        id: The sequence's id.
        tokens: The new tokens.
        finish: Why the sequence ended: ``"end"``, ``"stop"`` (a stop id), ``"length"``,
            ``"context"``, ``"refused"`` (the request is invalid), ``"unavailable"`` (no engine
            runs) or ``"error"``; None: the sequence continues.
        logprobs: Log probabilities of the new tokens, if requested.
        read: Number of the prompt's tokens evaluated so far.
        cached: Number of the prompt's tokens that were in the prefix cache.
        error: The error and a remedy, if *finish* is refused, unavailable or error.
        vector: The embedding: float32, little endian, in base64.
        prompt_logprobs: Log probabilities of the prompt's next tokens, if requested; the first
            token of a prompt has none.
        seconds: Seconds since the evaluation of the sequence began; 0 if unknown.
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
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepEvents:
    """The events of one step of the engine."""

    events: Sequence[SequenceEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's counts since its start, by name."""

    values: Mapping[str, float]


Message: TypeAlias = Open | Submit | Cancel | AskStats | Ready | Failed | StepEvents | EngineStats
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Open, Submit, Cancel, AskStats, Ready, Failed, StepEvents, EngineStats)
}
NAMES: dict[type[Any], list[str]] = {}
for _kind in (*KINDS.values(), SequenceEvent):
    NAMES[_kind] = [each.name for each in fields(_kind)]


def frame(message: Message) -> bytes:
    """Return *message* as a frame.

    Raises:
        ProtocolError: The message is larger than `MAX_FRAME`.
    """
    values = _values(message)
    if isinstance(message, StepEvents):
        values = [[_values(event) for event in message.events]]
    data = ENCODE([type(message).__name__, *values]).encode()
    return check_length(len(data)).to_bytes(HEADER, "big") + data


def length(header: bytes) -> int:
    """Return the number of bytes that follow *header*, the first `HEADER` bytes of a frame.

    Raises:
        ProtocolError: The number is above `MAX_FRAME`.
    """
    return check_length(int.from_bytes(header, "big"))


def check_length(count: int) -> int:
    """Return *count*, a message's length in bytes, or raise ProtocolError above `MAX_FRAME`."""
    if count > MAX_FRAME:
        raise ProtocolError(
            f"a message has {count} bytes, above {MAX_FRAME}", remedy="send a shorter prompt"
        )
    return count


def parse(data: bytes) -> Message:
    """Return the message in *data*, a frame without its header.

    Raises:
        ProtocolError: *data* is not a valid message.
    """
    try:
        name, *values = json.loads(data)
        message: Message = _made(KINDS[name], values)
        if isinstance(message, StepEvents):
            return StepEvents([_made(SequenceEvent, each) for each in message.events])
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
