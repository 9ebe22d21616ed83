"""Convert the WordPiece vocabulary of a BERT model from tokenizer.json.

GGUF stores the first piece of a word with the prefix U+2581, and later pieces without a prefix;
tokenizer.json has the prefix ## on later pieces.
Source: llama.cpp conversion/bert.py (BertModel.set_vocab), MIT; tokenizers 0.23, Apache-2.0.
"""

from typing import Any

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.families import Keys
from npurt.llm.convert.tokenizer.sentencepiece import OTHER
from npurt.llm.convert.tokenizer.steps import parts, tokens_of
from npurt.llm.text.detokenize import SPACE
from npurt.llm.text.vocabulary import WORDPIECE, TokenType

# Role in the GGUF key -> token.  GGUF spells "seperator".
ROLES = {"unknown": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]",
         "padding": "[PAD]", "mask": "[MASK]"}  # fmt: skip
LONGEST = 100  # maximum characters of a word in BERT's tokenizer


def keys_of_words(described: dict[str, Any], rows: int) -> Keys:
    """Return the metadata keys of the tokenizer, with one token for each of the embedding's *rows*.

    Raises:
        ModelFormatError: The tokenizer normalises or splits text differently from BERT's.
    """
    model = described["model"]
    lowercase, strip = _normalizer(described)
    splits = [part["type"] for part in parts(described.get("pre_tokenizer"))]
    prefix, longest = model.get("continuing_subword_prefix"), model.get("max_input_chars_per_word")
    if (splits, prefix, longest) != (["BertPreTokenizer"], "##", LONGEST):
        raise ModelFormatError(
            f"tokenizer.json splits text by {', '.join(splits):.80}, has the prefix {prefix!r:.20} "
            f"on later pieces of a word, and accepts words of up to {longest!r:.20} characters; "
            f"npurt converts BertPreTokenizer, ## and {LONGEST}",
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
    if kind != TokenType.NORMAL:
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def _normalizer(described: dict[str, Any]) -> tuple[bool, bool]:
    """Return whether the tokenizer lower-cases text, and whether it strips accents."""
    steps = parts(described.get("normalizer"))
    step = steps[0] if len(steps) == 1 else {}
    if step.get("type") != "BertNormalizer" or not (
        step.get("clean_text") and step.get("handle_chinese_chars")
    ):
        raise ModelFormatError(
            f"tokenizer.json normalises text by {steps!s:.120}, unlike BERT", remedy=OTHER
        )
    lowercase, strip = bool(step.get("lowercase")), step.get("strip_accents")
    return lowercase, lowercase if strip is None else bool(strip)
