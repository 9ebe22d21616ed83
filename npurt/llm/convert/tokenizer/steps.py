"""Read the processing steps and the tokens of a tokenizer from tokenizer.json.

Source: tokenizers 0.23 (tokenizer.json), Apache-2.0.
"""

import re
from typing import Any

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import bad
from npurt.llm.text.vocabulary import MAX_TOKENS, TokenType

# Tokens that are always markup, even without the flag `special`; Gemma has <unused0> and so on.
SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|<pad>|<mask>|<2mass>|\[@BOS@\]|<unused\d+>")


def parts(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a step as a flat list: the parts of a Sequence, or the step itself."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    names = [name for name in ("pretokenizers", "normalizers", "processors") if name in step]
    if not names:
        raise bad("tokenizer.json: a Sequence has no list of parts")
    inner = step[names[0]]
    return [part for each in inner for part in parts(each)]


def require_rows(highest: int, rows: int) -> None:
    """Raise an error if the embedding has no row for the id *highest*.

    Raises:
        ModelFormatError: *highest* has no row, or the embedding has more rows than npurt supports.
    """
    if highest >= rows or rows > MAX_TOKENS:
        raise ModelFormatError(
            f"the tokenizer has ids up to {highest}, but the embedding has {rows} rows",
            remedy="use the tokenizer and the weights of the same model",
        )


def tokens_of(
    vocab: dict[str, int], added: list[dict[str, Any]], rows: int
) -> tuple[list[str], list[int]]:
    """Return the texts and the kinds of all ids; an id without a token gets the text "[PADn]".

    Raises:
        ModelFormatError: An id is negative or at least *rows*, or a token is no string.
    """
    texts = {i: (text, TokenType.NORMAL) for text, i in vocab.items()}
    for token in added:
        markup = token.get("special") or SPECIAL.fullmatch(token["content"])
        texts[token["id"]] = (
            token["content"],
            TokenType.CONTROL if markup else TokenType.USER_DEFINED,
        )
    require_rows(max(texts, default=-1), rows)
    if not texts or min(texts) < 0:
        raise bad("tokenizer.json has no tokens, or a token with a negative id")
    found = [texts.get(i, (f"[PAD{i}]", TokenType.UNUSED)) for i in range(rows)]
    if not all(isinstance(text, str) for text, _ in found):
        raise bad("tokenizer.json: a token is no string")
    return [text for text, _ in found], [int(kind) for _, kind in found]
