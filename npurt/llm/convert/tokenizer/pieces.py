"""Convert the vocabulary of a SentencePiece tokenizer, which merges pieces of text.

The pieces and scores come from tokenizer.model if it exists, or else from tokenizer.json.  GGUF
has scores but no merges, so pieces that tokenizer.json merges earlier get higher scores.
Sources: google/sentencepiece, transformers convert_slow_tokenizer.py (the form in tokenizer.json),
Apache-2.0; llama.cpp conversion/base.py (`_create_vocab_sentencepiece`: added tokens), MIT.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.families import Keys
from npurt.llm.convert.checkpoint.settings import bad, meaning, read_json
from npurt.llm.convert.tokenizer.sentencepiece import OTHER, SentencePieces, read_model
from npurt.llm.convert.tokenizer.steps import SPECIAL, parts, require_rows
from npurt.llm.text.detokenize import SPACE
from npurt.llm.text.tokenizer import MAX_PIECE
from npurt.llm.text.vocabulary import MAX_TOKENS, SENTENCEPIECE, TokenType

MODEL = "tokenizer.model"
ADDED, PADDING = -1000.0, -10000.0  # scores of added tokens and of rows without a token


def pieces_of(folder: Path, described: dict[str, Any]) -> SentencePieces:
    """Return the pieces of the tokenizer in *folder*, including added tokens.

    Args:
        described: The content of tokenizer.json, or {} if the folder has none.

    Raises:
        ModelFormatError: A file is damaged, or GGUF cannot express the tokenizer.
    """
    if (folder / MODEL).exists():
        found = read_model(folder / MODEL)
    else:
        with meaning("tokenizer.json"):
            found = _listed(described)
    with meaning("added_tokens.json, tokenizer_config.json or tokenizer.json"):
        for i, text, special in _added(folder, described):
            _put(found, i, text, special=special)
    return found


def keys_of_pieces(found: SentencePieces, rows: int) -> tuple[list[str], Keys]:
    """Return the tokens of the embedding's *rows*, and the metadata keys that hold them."""
    require_rows(len(found.texts) - 1, rows)
    texts = [text or f"[PAD{i}]" for i, text in enumerate(found.texts)]
    texts += [f"[PAD{i}]" for i in range(len(texts), rows)]
    missing = rows - len(found.kinds)
    return texts, {
        "model": SENTENCEPIECE,
        "pre": "default",
        "tokens": texts,
        "scores": np.array(found.scores + [PADDING] * missing, np.float32),
        "token_type": np.array(found.kinds + [TokenType.UNUSED] * missing, np.int32),
        "add_space_prefix": found.space_before,
    }


def _added(folder: Path, described: dict[str, Any]) -> Iterator[tuple[int, str, bool]]:
    """Yield id, text and special flag of each added token; later entries take precedence."""
    for text, i in read_json(folder / "added_tokens.json").items():
        yield i, text, False
    config = read_json(folder / "tokenizer_config.json")
    for number, token in (config.get("added_tokens_decoder") or {}).items():
        yield int(number), token["content"], bool(token.get("special"))
    for token in described.get("added_tokens") or []:
        yield token["id"], token["content"], bool(token.get("special"))


def _put(found: SentencePieces, i: int, text: str, *, special: bool) -> None:
    """Set the text of token *i* to *text*, and its kind by *special*."""
    if type(i) is not int or not isinstance(text, str) or not 0 <= i < MAX_TOKENS:
        raise ValueError(f"the added token {text!r:.40} has the id {i!r:.40}")
    while len(found.texts) <= i:
        found.texts.append("")
        found.scores.append(PADDING)
        found.kinds.append(TokenType.UNUSED)
    if special or SPECIAL.fullmatch(text):
        kind = TokenType.UNKNOWN if found.kinds[i] == TokenType.UNKNOWN else TokenType.CONTROL
    else:
        kind, text = TokenType.USER_DEFINED, text.replace(SPACE, " ")  # matched in unescaped text
    found.texts[i], found.scores[i], found.kinds[i] = text, ADDED, int(kind)


# --- tokenizer.json -------------------------------------------------------------------------------


def _listed(described: dict[str, Any]) -> SentencePieces:
    """Return the pieces of tokenizer.json, with scores that follow from the order of merges."""
    model = described["model"]
    found = SentencePieces(space_before=_space_before(described))
    texts = {i: text for text, i in model["vocab"].items()}
    if set(texts) != set(range(len(texts))) or not all(isinstance(t, str) for t in texts.values()):
        raise bad("tokenizer.json: the ids of the tokens are not 0, 1, 2 and so on")
    ranks = _ranks(model)
    unknown = model.get("unk_token")
    for i in range(len(texts)):
        text = texts[i]
        if len(text) > MAX_PIECE:
            raise bad(f"tokenizer.json: token {i} has {len(text)} characters, above {MAX_PIECE}")
        found.texts.append(text)
        found.scores.append(-float(ranks.get(text, len(ranks))))
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        kind = (
            TokenType.UNKNOWN
            if text == unknown
            else TokenType.BYTE
            if is_byte
            else TokenType.NORMAL
        )
        found.kinds.append(int(kind))
    found.ids = {"unk": model["vocab"][unknown]} if unknown in model["vocab"] else {}
    _require_scored(found, model, {token["content"] for token in described["added_tokens"] or []})
    return found


def _pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the merges: lists of two strings in newer files, "LEFT RIGHT" in older files."""
    found = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        found.append((left, right))
    return found


def _ranks(model: dict[str, Any]) -> dict[str, int]:
    """Return the rank of each merged text in the order of the merges."""
    ranks: dict[str, int] = {}
    last = ""
    for left, right in _pairs(model):
        made = left + right
        if made in ranks and made != last:
            raise ModelFormatError(
                f"tokenizer.json merges {made!r:.40} at two ranks, but GGUF has one score for it",
                remedy=f"copy the {MODEL} of this model's base model into the folder",
            )
        ranks.setdefault(made, len(ranks))
        last = made
    return ranks


def _require_scored(found: SentencePieces, model: dict[str, Any], added: set[str]) -> None:
    """Raise an error if scores cannot express the merges.

    With scores, any two pieces merge if their concatenation is a piece.
    """
    given, texts = set(_pairs(model)), {*found.texts}
    for text, kind in zip(found.texts, found.kinds, strict=True):
        if kind != TokenType.NORMAL or text in added:
            continue
        for cut in range(1, len(text)):
            pair = text[:cut], text[cut:]
            if pair[0] in texts and pair[1] in texts and pair not in given:
                raise ModelFormatError(
                    f"tokenizer.json does not merge {pair[0]!r:.40} and {pair[1]!r:.40}, which "
                    "GGUF cannot express",
                    remedy=f"copy the {MODEL} of this model's base model into the folder",
                )


def _space_before(described: dict[str, Any]) -> bool:
    """Return whether the tokenizer prepends a space to the text; refuse other normalisations."""
    found = False
    for part in [*parts(described.get("normalizer")), *parts(described.get("pre_tokenizer"))]:
        kind = part["type"]
        if kind == "Metaspace" and part["replacement"] == SPACE and not part.get("split", True):
            found = part.get("prepend_scheme", "always") != "never"
        elif kind == "Prepend" and part["prepend"] == SPACE:
            found = True
        elif not _only_spaces(part):
            raise ModelFormatError(
                f"tokenizer.json changes text by {part!s:.120}, which GGUF cannot express for this "
                "type of tokenizer",
                remedy=OTHER,
            )
    return found


def _only_spaces(part: dict[str, Any]) -> bool:
    """Return whether a step replaces spaces as SentencePiece does, or splits at spaces (Gemma)."""
    if part.get("pattern") != {"String": " "}:
        return False
    return part["type"] == "Split" or (part["type"], part.get("content")) == ("Replace", SPACE)
