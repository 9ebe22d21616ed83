"""Read a SentencePiece model, the tokenizer.model of a checkpoint.

It is a message of Protocol Buffers: fields, each a tag (its number and how its value is stored) and
a value.  The file may come from a stranger: everything is checked.
Sources: protobuf.dev, "Encoding"; google/sentencepiece src/sentencepiece_model.proto, Apache-2.0
(numbers and defaults of fields).
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import bad, content_of
from npurt.llm.text.vocabulary import MAX_TEXT, MAX_TOKENS, Kind

MOST = 1 << 26  # bytes of a file; Gemma's has 4.7 MB
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a value is stored
SIZES = {FIXED64: 8, FIXED32: 4}
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the model
PIECE_TEXT, PIECE_SCORE, PIECE_TYPE = 1, 2, 3
MODEL_TYPE, BPE = 3, 2  # field of the trainer's settings, and the one value that GGUF calls llama
IDS = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
DEFAULT_IDS = {"unk": 0, "bos": 1, "eos": 2}
CHARACTERS, SPACE_BEFORE = 2, 3  # fields of the normalizer's settings
OTHER = "use the GGUF file of its makers, or llama.cpp's convert_hf_to_gguf.py"

Value = int | memoryview


@dataclass(slots=True)
class Pieces:
    """A vocabulary whose merges follow from scores.

    Attributes:
        kinds: The `Kind` of each piece; SentencePiece has the same numbers.
        ids: Ids of the pieces with a role: unk, bos, eos and pad.
        space_before: A text gets a space before it.
    """

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    space_before: bool = True


def read_model(path: Path) -> Pieces:
    """Return the pieces of a tokenizer.model.

    Raises:
        ModelFormatError: The file cannot be read or is damaged, or its model is no BPE or changes
            characters before it.
    """
    try:
        if path.stat().st_size > MOST:
            raise ValueError(f"it has more than {MOST} bytes")
        return _model(memoryview(content_of(path)))
    except ModelFormatError:
        raise
    except (OSError, ValueError, struct.error) as error:
        raise bad(f"{path.name} is no SentencePiece model: {error}") from error


def _model(data: memoryview) -> Pieces:
    found = Pieces(ids=dict(DEFAULT_IDS))
    kind, nbytes = 1, 0  # unigram is the default
    for number, value in _fields(data):
        if number == PIECES:
            nbytes += _add(found, _message(value))
            if len(found.texts) > MAX_TOKENS or nbytes > MAX_TEXT:
                raise ValueError(f"it has more than {MAX_TOKENS} pieces or {MAX_TEXT} bytes")
        elif number == TRAINER:
            for name, each in _fields(_message(value)):
                if name == MODEL_TYPE:
                    kind = _integer(each)
                elif name in IDS:
                    found.ids[IDS[name]] = _integer(each)
        elif number == NORMALIZER:
            _normalizer(found, _message(value))
    if not found.texts:
        raise ValueError("it has no pieces")
    if kind != BPE:
        raise ModelFormatError(
            f"tokenizer.model has model type {kind}, and npurt knows BPE ({BPE}) alone",
            remedy=OTHER,
        )
    found.ids = {role: i for role, i in found.ids.items() if 0 <= i < len(found.texts)}
    return found


def _add(found: Pieces, data: memoryview) -> int:
    """Add a piece, and return the number of its bytes."""
    text, score, kind = b"", 0.0, int(Kind.NORMAL)
    for number, value in _fields(data):
        if number == PIECE_TEXT:
            text = bytes(_message(value))
        elif number == PIECE_SCORE:
            [score] = struct.unpack("<f", _message(value))
        elif number == PIECE_TYPE:
            kind = _integer(value)
    if kind not in list(Kind)[1:] or not math.isfinite(score):
        raise ValueError(f"piece {len(found.texts)} has type {kind} and score {score}")
    found.texts.append(text.decode())
    found.scores.append(score)
    found.kinds.append(kind)
    return len(text)


def _normalizer(found: Pieces, data: memoryview) -> None:
    for number, value in _fields(data):
        if number == CHARACTERS and len(_message(value)):
            raise ModelFormatError(
                "tokenizer.model replaces characters before it looks for tokens, which GGUF cannot "
                "say of this kind of tokenizer",
                remedy=OTHER,
            )
        if number == SPACE_BEFORE:
            found.space_before = _integer(value) != 0


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field: an int, or the bytes of any other."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, stored = tag >> 3, tag & 7
        if stored == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if stored == BYTES:
            size, at = _varint(data, at)
        elif stored in SIZES:
            size = SIZES[stored]
        else:
            raise ValueError(f"the field at byte {at} has wire type {stored}")
        if size > len(data) - at:
            raise ValueError(
                f"the field at byte {at} has {size} bytes, and {len(data) - at} follow"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the integer at *at*, seven bits a byte, lowest first; and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"it ends within a number, at byte {at}")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"the number before byte {at} has more than 64 bits")


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError(f"a field is the number {value} where bytes belong")
    return value


def _integer(value: Value) -> int:
    """Return an int32; negative ones are stored as 64 bits."""
    if not isinstance(value, int):
        raise ValueError(f"a field has {len(value)} bytes where a number belongs")
    return value - (1 << 64) if value >= 1 << 63 else value
