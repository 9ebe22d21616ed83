"""Read a SentencePiece model, the tokenizer.model of a checkpoint.

The file is a Protocol Buffers message: a list of fields, each with a tag (field number and wire
type) and a value.  The file is untrusted, so every value is checked.
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
from npurt.llm.text.vocabulary import MAX_TEXT, MAX_TOKENS, TokenType

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
SIZES = {FIXED64: 8, FIXED32: 4}
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the model
PIECE_TEXT, PIECE_SCORE, PIECE_TYPE = 1, 2, 3
MODEL_TYPE, BPE = 3, 2  # field of the trainer's settings, and its value for BPE ("llama" in GGUF)
IDS = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
DEFAULT_IDS = {"unk": 0, "bos": 1, "eos": 2}
CHARACTERS, SPACE_BEFORE = 2, 3  # fields of the normalizer's settings
OTHER = "use a released GGUF file of the model, or llama.cpp's convert_hf_to_gguf.py"

Value = int | memoryview


@dataclass(slots=True)
class SentencePieces:
    """A vocabulary in which scores determine the merges.

    Attributes:
        kinds: The `TokenType` of each piece, with the numbers of SentencePiece.
        ids: Role (unk, bos, eos or pad) -> id of the piece.
        space_before: The tokenizer prepends a space to the text.
    """

    texts: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)
    space_before: bool = True


def read_model(path: Path) -> SentencePieces:
    """Return the pieces of a tokenizer.model.

    Raises:
        ModelFormatError: The file cannot be read or is damaged, its model is no BPE, or it
            normalises characters.
    """
    try:
        return _model(memoryview(content_of(path)))
    except ModelFormatError:
        raise
    except (OSError, ValueError, struct.error) as error:
        raise bad(f"{path.name} is no SentencePiece model: {error}") from error


def _model(data: memoryview) -> SentencePieces:
    found = SentencePieces(ids=dict(DEFAULT_IDS))
    kind, nbytes = 1, 0  # type 1, unigram, is the default
    for number, value in _fields(data):
        if number == PIECES:
            nbytes += _add(found, _message(value))
            if len(found.texts) > MAX_TOKENS or nbytes > MAX_TEXT:
                raise ValueError(f"the model has over {MAX_TOKENS} pieces or {MAX_TEXT} bytes")
        elif number == TRAINER:
            for name, each in _fields(_message(value)):
                if name == MODEL_TYPE:
                    kind = _integer(each)
                elif name in IDS:
                    found.ids[IDS[name]] = _integer(each)
        elif number == NORMALIZER:
            _normalizer(found, _message(value))
    if not found.texts:
        raise ValueError("the model has no pieces")
    if kind != BPE:
        raise ModelFormatError(
            f"tokenizer.model has model type {kind}; npurt converts only BPE ({BPE})",
            remedy=OTHER,
        )
    found.ids = {role: i for role, i in found.ids.items() if 0 <= i < len(found.texts)}
    return found


def _add(found: SentencePieces, data: memoryview) -> int:
    """Add a piece to *found*, and return its length in bytes."""
    text, score, kind = b"", 0.0, int(TokenType.NORMAL)
    for number, value in _fields(data):
        if number == PIECE_TEXT:
            text = bytes(_message(value))
        elif number == PIECE_SCORE:
            [score] = struct.unpack("<f", _message(value))
        elif number == PIECE_TYPE:
            kind = _integer(value)
    if kind not in list(TokenType)[1:] or not math.isfinite(score):
        raise ValueError(f"piece {len(found.texts)} has type {kind} and score {score}")
    found.texts.append(text.decode())
    found.scores.append(score)
    found.kinds.append(kind)
    return len(text)


def _normalizer(found: SentencePieces, data: memoryview) -> None:
    for number, value in _fields(data):
        if number == CHARACTERS and len(_message(value)):
            raise ModelFormatError(
                "tokenizer.model normalises characters before tokenization, which GGUF cannot "
                "express for this type of tokenizer",
                remedy=OTHER,
            )
        if number == SPACE_BEFORE:
            found.space_before = _integer(value) != 0


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field: an int for a varint, or else the bytes."""
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
                f"the field at byte {at} has {size} bytes, but only {len(data) - at} follow"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at byte *at* and the position after it: 7 bits per byte, lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError(f"the data end within a number, at byte {at}")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError(f"the number before byte {at} has more than 64 bits")


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError(f"a field is the number {value}, but bytes are expected")
    return value


def _integer(value: Value) -> int:
    """Return an int32; negative numbers are stored in 64 bits."""
    if not isinstance(value, int):
        raise ValueError(f"a field has {len(value)} bytes, but a number is expected")
    return value - (1 << 64) if value >= 1 << 63 else value
