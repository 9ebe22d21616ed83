"""The steps of a tokenizer as tokenizer.json lists them, and its tokens.

Source: tokenizers 0.23 (tokenizer.json), Apache-2.0.
"""

import re
from typing import Any

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import bad
from npurt.llm.text.vocabulary import MAX_TOKENS, Kind

# Tokens that are markup whatever the files say; Gemma has <unused0> and so on.
SPECIAL = re.compile(r"<\|.*\|>|<｜.*｜>|<pad>|<mask>|<2mass>|\[@BOS@\]|<unused\d+>")


def parts(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a step of a tokenizer as the list of its parts."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    names = [name for name in ("pretokenizers", "normalizers", "processors") if name in step]
    if not names:
        raise bad("tokenizer.json: a Sequence has no list of its parts")
    inner = step[names[0]]
    return [part for each in inner for part in parts(each)]


def require_rows(highest: int, rows: int) -> None:
    """Refuse ids that the embedding has no row for.

    Raises:
        ModelFormatError: *highest* is such an id, or there are more rows than npurt takes.
    """
    if highest >= rows or rows > MAX_TOKENS:
        raise ModelFormatError(
            f"the tokenizer has ids up to {highest}, the embedding {rows} rows",
            remedy="take tokenizer and weights of one model",
        )


def tokens_of(
    vocab: dict[str, int], added: list[dict[str, Any]], rows: int
) -> tuple[list[str], list[int]]:
    """Return the text and the kind of each id; ids without a token get a name.

    Raises:
        ModelFormatError: They are no ids, or more than *rows*.
    """
    texts = {i: (text, Kind.NORMAL) for text, i in vocab.items()}
    for token in added:
        markup = token.get("special") or SPECIAL.fullmatch(token["content"])
        texts[token["id"]] = token["content"], Kind.CONTROL if markup else Kind.USER_DEFINED
    require_rows(max(texts, default=-1), rows)
    if not texts or min(texts) < 0:
        raise bad("tokenizer.json has no tokens, or one with an id below 0")
    found = [texts.get(i, (f"[PAD{i}]", Kind.UNUSED)) for i in range(rows)]
    if not all(isinstance(text, str) for text, _ in found):
        raise bad("tokenizer.json: a token is no text")
    return [text for text, _ in found], [int(kind) for _, kind in found]
