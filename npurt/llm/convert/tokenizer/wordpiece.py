"""The WordPiece vocabulary of a BERT, from tokenizer.json.

GGUF writes U+2581 before words and nothing before the rests of words, which have ## there.
Source: llama.cpp conversion/bert.py (BertModel.set_vocab), MIT; tokenizers 0.23, Apache-2.0.
"""

from typing import Any

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.families import Keys
from npurt.llm.convert.tokenizer.sentencepiece import OTHER
from npurt.llm.convert.tokenizer.steps import parts, tokens_of
from npurt.llm.text.detokenize import SPACE
from npurt.llm.text.vocabulary import WORDPIECE, Kind

# Key of the id -> token.  "seperator" is GGUF's spelling.
ROLES = {"unknown": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]",
         "padding": "[PAD]", "mask": "[MASK]"}  # fmt: skip
LONGEST = 100  # characters of a word


def keys_of_words(described: dict[str, Any], rows: int) -> Keys:
    """Return the keys of the tokens of so many rows of the embedding.

    Raises:
        ModelFormatError: The tokenizer changes or splits text in another way than BERT's.
    """
    model = described["model"]
    lowercase, strip = _normalizer(described)
    splits = [part["type"] for part in parts(described.get("pre_tokenizer"))]
    prefix, longest = model.get("continuing_subword_prefix"), model.get("max_input_chars_per_word")
    if (splits, prefix, longest) != (["BertPreTokenizer"], "##", LONGEST):
        raise ModelFormatError(
            f"tokenizer.json splits text by {', '.join(splits):.80}, writes {prefix!r:.20} before "
            f"the rest of a word, and takes words of up to {longest!r:.20} characters; BERT: "
            f"BertPreTokenizer, ##, {LONGEST}",
            remedy=OTHER,
        )
    texts, kinds = tokens_of(model["vocab"], described.get("added_tokens") or [], rows)
    ids = {text: i for i, text in enumerate(texts)}
    roles = {f"{role}_token_id": ids[text] for role, text in ROLES.items() if text in ids}
    return roles | {
        "model": WORDPIECE,
        "pre": "jina-v2-en",  # llama.cpp's name of BERT's splits
        "tokens": [_stored(*each) for each in zip(texts, kinds, strict=True)],
        "token_type": np.array(kinds, np.int32),
        "normalizer.lowercase": lowercase,
        "normalizer.strip_accents": strip,
    }


def _stored(text: str, kind: int) -> str:
    if kind != Kind.NORMAL:
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def _normalizer(described: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether text becomes lower case, and whether it loses its accents."""
    steps = parts(described.get("normalizer"))
    step = steps[0] if len(steps) == 1 else {}
    if step.get("type") != "BertNormalizer" or not (
        step.get("clean_text") and step.get("handle_chinese_chars")
    ):
        raise ModelFormatError(
            f"tokenizer.json changes text by {steps!s:.120}, and not as BERT does", remedy=OTHER
        )
    lowercase, strip = bool(step.get("lowercase")), step.get("strip_accents")
    return lowercase, lowercase if strip is None else bool(strip)
