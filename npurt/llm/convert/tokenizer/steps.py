"""The steps of a tokenizer as tokenizer.json lists them, and its tokens.

Source: tokenizers 0.23 (tokenizer.json), Apache-2.0.
"""

import re
from typing import Any

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import bad
from npurt.llm.text.vocabulary import MAX_TOKENS

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
