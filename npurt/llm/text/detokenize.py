"""Convert token ids to text.

A token stands for bytes, and the bytes of one character may be split over several tokens.
Source: llama.cpp src/llama-vocab.cpp, token_to_piece(), MIT: the bytes of each kind of token.
"""

import codecs
import operator
import re
from collections.abc import Iterable

from npurt.errors import LayoutError, brief
from npurt.llm.text.vocabulary import BPE, TokenType, Vocabulary

SPACE = "▁"  # U+2581: a space in SentencePiece, the beginning of a word in GGUF's WordPiece
# A constant, because an access to a member of an enum takes a microsecond.
NORMAL = int(TokenType.NORMAL)
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[int, int]:
    """Return GPT-2's byte alphabet: code point -> byte.

    A printable Latin-1 character stands for the byte of its code point; code points from 256 on
    stand for the other bytes.
    Source: openai/gpt-2 src/encoder.py, bytes_to_unicode(), MIT: the numbering only.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


class Pieces:
    """The bytes of each token of *vocabulary*, computed at the first use."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._alphabet = _byte_alphabet()
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        """Return the bytes of *token*, which are empty for padding.

        Raises:
            LayoutError: The vocabulary has no such token.
        """
        piece = self._known.get(token)
        if piece is None:
            if not 0 <= token < len(self._vocabulary.tokens):
                raise LayoutError(
                    f"{brief(token)} is not one of {len(self._vocabulary.tokens)} tokens",
                    remedy="pass ids of this model's vocabulary",
                )
            piece = self._known[token] = self._make(token)
        return piece

    def _make(self, token: int) -> bytes:
        text = self._vocabulary.tokens[token]
        kind = int(self._vocabulary.kinds[token])
        if kind != NORMAL:
            return _special(kind, text)
        if self._vocabulary.model != BPE:
            return _utf8(text.replace(SPACE, " "))
        try:
            return bytes(map(self._alphabet.__getitem__, map(ord, text)))
        except KeyError:  # a character outside the alphabet: no text encodes to this token
            return _utf8(text)


def _special(kind: int, text: str) -> bytes:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
        return _utf8(text)
    match = _BYTE.fullmatch(text) if kind == TokenType.BYTE else None
    return bytes.fromhex(match[1]) if match else b""


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Detokenizer:
    """An incremental decoder from tokens to text.

    Bytes that are not UTF-8 become U+FFFD.  The stream buffers an incomplete character until its
    bytes are complete, or until `finish`.
    """

    def __init__(self, pieces: Pieces, *, hidden: frozenset[int], strip: bool) -> None:
        """Start a stream; see `join` for *hidden* and *strip*."""
        self._pieces = pieces
        self._hidden = hidden
        self._strip = strip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the characters that *token* completes, possibly none.  Errors as `Pieces`."""
        if type(token) is not int or self._strip:
            data = join(self._pieces, (token,), hidden=self._hidden, strip=self._strip)
            self._strip = self._strip and token in self._hidden
        else:  # a faster path with the same result
            data = b"" if token in self._hidden else self._pieces[token]
        return self._decoder.decode(data)

    def finish(self) -> str:
        """End the stream, and return U+FFFD for an incomplete character, or ""."""
        return self._decoder.decode(b"", final=True)


def as_ids(tokens: Iterable[int]) -> list[int]:
    """Return *tokens* as a list of ints.

    Raises:
        LayoutError: *tokens* is not iterable, is a string, or has an element that is no integer.
    """
    try:
        if isinstance(tokens, str | bytes | bytearray):
            raise TypeError
        return [operator.index(token) for token in tokens]
    except TypeError as error:
        raise LayoutError(
            f"{brief(tokens)} are no token ids", remedy="pass a list of integers"
        ) from error


def join(pieces: Pieces, tokens: Iterable[int], *, hidden: frozenset[int], strip: bool) -> bytes:
    """Return the concatenated bytes of *tokens*.

    Args:
        pieces: The bytes of each token.
        tokens: Token ids.
        hidden: Ids that are omitted.
        strip: Remove the leading space that SentencePiece prepended to the text.
    """
    shown = [pieces[token] for token in as_ids(tokens) if token not in hidden]
    if strip and shown:
        shown[0] = shown[0].removeprefix(b" ")
    return b"".join(shown)
