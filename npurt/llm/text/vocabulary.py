"""Read and check the tokens of a GGUF file: their texts, kinds and roles.

Sources: ggml docs/gguf.md (keys, token types); llama.cpp src/llama-vocab.cpp, MIT (defaults, and
the texts of tokens that end a generation).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import CONVERT_AGAIN, INTEGERS, Metadata, numbers, require, strings
from npurt.llm.file.string_array import StringArray

BPE, SENTENCEPIECE, WORDPIECE = "gpt2", "llama", "bert"  # values of tokenizer.ggml.model


class TokenType(IntEnum):
    """The kind of a token, a value of ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Limits; Gemma has 262,144 tokens with some 3 MB of text.
MAX_TOKENS = 1 << 20
MAX_TEXT = 1 << 24  # bytes

# The file has the id of a role in tokenizer.ggml.<role>_token_id.  Tokens of all roles except the
# first two end a generation.
ROLES = ("bos", "unknown", "eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# WordPiece files may have these keys for a role, which take precedence.  GGUF spells "seperator".
OTHER_KEYS = {"bos": ("cls_token_id",), "eos": ("seperator_token_id",)}
# llama.cpp's defaults.
DEFAULT_ROLES = {
    SENTENCEPIECE: {"bos": 1, "eos": 2, "unknown": 0},
    WORDPIECE: {"bos": 101, "eos": 102, "unknown": 100},
}

# Texts of tokens that always end a generation, in addition to the ids that the file names.  The
# tokens in the second line end a file or a repository.
ENDS = re.compile(
    r"<\|(eot_id|eom_id|end_of_text|endoftext|im_end|end|return|call)\|>"
    r"|<\|(fim_pad|fim_repo|repo_name|file_sep)\|>|<fim[-_]pad>|<fim-repo>|<reponame>|<REPO>"
    r"|</s>|<eos>|_?<EOT>|\[EOT\]|\[EOS\]|<end_of_turn>|<end_of_utterance>|<｜end▁of▁sentence｜>"
)
# In a file without kinds, texts of markup tokens, and of tokens for single bytes.
MARKUP = re.compile(
    r"<\|[^\s|]+\|>|<｜[^\s｜]+｜>|\[(?:CLS|SEP|UNK|PAD|MASK)\]|<(?:s|pad|bos|mask)>"
)
BYTES = re.compile(r"<0x[0-9A-F]{2}>")
# If a vocabulary has both tokens of HARMONY, <|end|> ends a channel of a message, and the message
# continues.
HARMONY, END_OF_MESSAGE = {"<|return|>", "<|call|>"}, "<|end|>"
FILL_INS = re.compile(
    r"<\|fim_(prefix|suffix|middle)\|>|<fim[-_](prefix|suffix|middle)>|▁?<(PRE|SUF|MID)>"
    r"|<｜fim▁(begin|hole|end)｜>"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id.

    Attributes:
        model: `BPE`, `SENTENCEPIECE` or `WORDPIECE`.
        tokens: The distinct texts in the file: in GPT-2's byte alphabet for BPE; otherwise pieces
            of words, in which U+2581 stands for the space before a word.
        kinds: The `TokenType` of each token.
        roles: Role -> id, for the roles that the file names.
        control: Ids of markup tokens, to which plain text is never encoded.
        ends: Ids that end a generation.
        never: Ids that must not be sampled: padding rows, and the file's suppress_tokens.
    """

    model: str
    tokens: StringArray
    kinds: bytes
    roles: dict[str, int]
    control: frozenset[int]
    ends: frozenset[int]
    never: frozenset[int]

    @classmethod
    def read(cls, metadata: Metadata, tokens: StringArray) -> Self:
        """Read the vocabulary of *tokens* from *metadata*.

        Raises:
            ModelFormatError: A key is missing or wrong, an id is out of range, or npurt does not
                support the tokenizer model.
        """
        model = require(metadata, "tokenizer.ggml.model", str)
        if model not in (BPE, SENTENCEPIECE, WORDPIECE):
            raise ModelFormatError(
                f"npurt does not know the tokenizer model {model!r}",
                remedy=f"use a model whose tokenizer.ggml.model is {BPE}, {SENTENCEPIECE} or "
                f"{WORDPIECE}",
            )
        roles = _roles(metadata, model, len(tokens))
        if "tokenizer.ggml.token_type" in metadata:
            given = per_token(metadata, "token_type", INTEGERS, len(tokens)).tolist()
            if not set(given) <= set(TokenType):
                raise ModelFormatError("a token's type is not one of 0 to 6", remedy=CONVERT_AGAIN)
            kinds = bytes(given)
        else:
            kinds = bytes(_inferred(model, tokens, roles))
        control = _control(tokens, kinds)
        ends = {i for i in control if ENDS.fullmatch(tokens[i])}
        texts = {tokens[i]: i for i in ends}
        if texts.keys() >= HARMONY:
            ends.discard(texts.get(END_OF_MESSAGE, -1))
        ends.update(i for role, i in roles.items() if role not in ("bos", "unknown"))
        return cls(model, tokens, kinds, roles, control, frozenset(ends), _never(metadata, kinds))


def _inferred(model: str, tokens: StringArray, roles: dict[str, int]) -> Iterator[TokenType]:
    """Yield the kind of each token of a file without kinds, by its text and its role."""
    roles = roles if model != WORDPIECE else {}
    markup = set(roles.values()) - {roles.get("unknown")}
    for i, text in enumerate(tokens):
        if i == roles.get("unknown"):
            yield TokenType.UNKNOWN
        elif i in markup or ENDS.fullmatch(text) or MARKUP.fullmatch(text):
            yield TokenType.CONTROL
        else:
            is_byte = model == SENTENCEPIECE and BYTES.fullmatch(text)
            yield TokenType.BYTE if is_byte else TokenType.NORMAL


def token_texts(metadata: Metadata) -> StringArray:
    """Return the texts of the tokens in the file; raise ModelFormatError if they are too many."""
    found = strings(metadata, "tokenizer.ggml.tokens")
    if len(found) > MAX_TOKENS or found.nbytes > MAX_TEXT:
        raise ModelFormatError(
            f"the vocabulary has {len(found)} tokens with {found.nbytes} bytes; npurt accepts at "
            f"most {MAX_TOKENS} with {MAX_TEXT} bytes",
            remedy=CONVERT_AGAIN,
        )
    return found


def per_token(metadata: Metadata, name: str, letters: str, count: int) -> "memoryview[Any]":
    """Return the array ``tokenizer.ggml.<name>``, which must have *count* elements."""
    values = numbers(metadata, f"tokenizer.ggml.{name}", letters)
    if len(values) != count:
        raise ModelFormatError(
            f"the file has {count} tokens, but tokenizer.ggml.{name} has {len(values)} elements",
            remedy=CONVERT_AGAIN,
        )
    return values


def distinct(texts: StringArray) -> tuple[StringArray, dict[str, int]]:
    """Return *texts*, in which empty texts become "[EMPTY_n]", and the id of each text.

    Raises:
        ModelFormatError: *texts* is empty, or a text occurs twice.
    """
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if "" in ids:
        texts = StringArray.of(text or f"[EMPTY_{i}]" for i, text in enumerate(texts))
        ids = dict(zip(texts, range(len(texts)), strict=True))
    if not texts or len(ids) < len(texts):
        raise ModelFormatError("the vocabulary is empty or has a token twice", remedy=CONVERT_AGAIN)
    return texts, ids


def _roles(metadata: Metadata, model: str, count: int) -> dict[str, int]:
    """Return role -> id; a default id that is out of range is omitted."""
    roles = {role: i for role, i in DEFAULT_ROLES.get(model, {}).items() if i < count}
    others = OTHER_KEYS if model == WORDPIECE else {}
    for role in ROLES:
        for name in (f"{role}_token_id", *others.get(role, ())):
            key = f"tokenizer.ggml.{name}"
            if key not in metadata:
                continue
            roles[role] = require(metadata, key, int)
            if not 0 <= roles[role] < count:
                raise ModelFormatError(
                    f"{key} = {roles[role]} is not one of {count} tokens", remedy=CONVERT_AGAIN
                )
    return roles


def tokens_of(kinds: bytes, *wanted: TokenType) -> list[int]:
    """Return the ids whose kind is one of *wanted*."""
    return [found.start() for found in re.finditer(b"[%b]" % bytes(wanted), kinds)]


def _control(tokens: StringArray, kinds: bytes) -> frozenset[int]:
    """Return the ids of markup tokens.

    Some converters give markup the kind user-defined; such tokens are recognised by their texts.
    """
    marked = tokens_of(kinds, TokenType.UNKNOWN, TokenType.CONTROL)
    user = tokens_of(kinds, TokenType.USER_DEFINED)
    known = [i for i in user if ENDS.fullmatch(tokens[i]) or FILL_INS.fullmatch(tokens[i])]
    return frozenset(marked + known)


def _never(metadata: Metadata, kinds: bytes) -> frozenset[int]:
    key = "tokenizer.ggml.suppress_tokens"
    given = numbers(metadata, key, INTEGERS) if key in metadata else ()
    suppressed = {i for i in given if 0 <= i < len(kinds)}
    return frozenset(suppressed.union(tokens_of(kinds, TokenType.UNUSED)))
