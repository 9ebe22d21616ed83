"""Convert tokenizer.json and tokenizer_config.json to GGUF metadata.

npurt converts three types of tokenizers: byte-level BPE (in this module), BPE over pieces of text
(`pieces`) and WordPiece (`wordpiece`).  This module recognises the pre-tokenizer of a byte-level
BPE by its patterns; llama.cpp recognises it by a hash of the tokens of a test string.  Sources:
tokenizers 0.23 (tokenizer.json), Apache-2.0; llama.cpp conversion/base.py (`get_vocab_base`: kinds
of tokens), gguf-py/gguf/vocab.py (special ids), MIT.
"""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.families import Keys
from npurt.llm.convert.checkpoint.settings import bad, content_of, meaning, read_json
from npurt.llm.convert.tokenizer.pieces import MODEL, keys_of_pieces, pieces_of
from npurt.llm.convert.tokenizer.sentencepiece import OTHER
from npurt.llm.convert.tokenizer.steps import parts, tokens_of
from npurt.llm.convert.tokenizer.wordpiece import keys_of_words
from npurt.llm.text.pretokenize import RULES
from npurt.llm.text.vocabulary import BPE, ENDS, SENTENCEPIECE

GPT2 = RULES["gpt-2"].patterns[0]  # the pattern of ByteLevel with use_regex
DIGIT = r"\p{N}"


def vocabulary_of(folder: Path, arch: str, rows: int) -> Keys:
    """Return the keys of the tokenizer in *folder*.

    Args:
        arch: The architecture; if a pre-tokenizer has this name, it is preferred.
        rows: Rows of the token embedding; ids without a token get a name and are never sampled.

    Raises:
        ModelFormatError: A file is missing or damaged, or npurt does not convert the tokenizer.
    """
    described = read_json(folder / "tokenizer.json")
    if not described and not (folder / MODEL).exists():
        raise ModelFormatError(
            f"{folder} has neither tokenizer.json nor {MODEL}",
            remedy="save the tokenizer with transformers (AutoTokenizer.save_pretrained), which "
            "writes tokenizer.json",
        )
    config = read_json(folder / "tokenizer_config.json")
    with meaning("tokenizer.json"):
        ends = _template(described.get("post_processor"))
        if described.get("model", {}).get("type") == "WordPiece":
            keys = keys_of_words(described, rows)
            keys["token_type_count"] = read_json(folder / "config.json").get("type_vocab_size", 1)
            return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
        if _is_of_pieces(described):
            found = pieces_of(folder, described)
            tokens, keys = keys_of_pieces(found, rows)
            roles = found.ids
            if not described:
                ends = tokens[roles["bos"]] if "bos" in roles else None, None
        else:
            tokens, keys = _byte_level(described, arch, rows)
            roles = {}
    with meaning("tokenizer_config.json"):
        ids = {token: i for i, token in enumerate(tokens)}
        keys |= _special(folder, config, ids, ends, roles)
        if keys["model"] == SENTENCEPIECE and isinstance(config.get("add_prefix_space"), bool):
            keys["add_space_prefix"] = config["add_prefix_space"]
        template = _chat_template(folder, config)
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return keys | ({"tokenizer.chat_template": template} if template else {})


def _is_of_pieces(described: dict[str, Any]) -> bool:
    """Return whether the tokenizer is a BPE over pieces of text, with bytes as the fallback."""
    model = described.get("model", {"type": "BPE", "byte_fallback": True})
    return model.get("type") == "BPE" and bool(model.get("byte_fallback"))


def _byte_level(described: dict[str, Any], arch: str, rows: int) -> tuple[list[str], Keys]:
    """Return the tokens of a byte-level BPE, and the metadata keys that hold them."""
    model = described["model"]
    _require_bytes(described, model)
    tokens, kinds = tokens_of(model["vocab"], described.get("added_tokens") or [], rows)
    return tokens, {
        "model": BPE,
        "pre": _rule(described, model, arch),
        "tokens": tokens,
        "token_type": np.array(kinds, np.int32),
        "merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
    }


def _require_bytes(described: dict[str, Any], model: dict[str, Any]) -> None:
    """Raise an error unless the tokenizer is a byte-level BPE without normalisation except NFC."""
    splits = parts(described.get("pre_tokenizer"))
    if model.get("type") != "BPE" or not any(part["type"] == "ByteLevel" for part in splits):
        raise ModelFormatError(
            f"tokenizer.json is a {model.get('type')}, not a BPE over bytes or with byte_fallback",
            remedy=OTHER,
        )
    normal = parts(described.get("normalizer"))
    if any(part["type"] != "NFC" for part in normal):  # npurt and llama.cpp do not apply NFC
        kinds = ", ".join(str(part["type"]) for part in normal)
        raise ModelFormatError(f"tokenizer.json normalises text by {kinds:.80}", remedy=OTHER)


def _rule(described: dict[str, Any], model: dict[str, Any], arch: str) -> str:
    """Return llama.cpp's name of the pre-tokenizer with these patterns."""
    patterns: list[str] = []
    for part in parts(described.get("pre_tokenizer")):
        if part["type"] == "Split" and part.get("behavior") == "Isolated":
            pattern = part["pattern"]
            patterns.append(
                pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
            )
        elif part["type"] == "Digits" and part.get("individual_digits"):
            patterns.append(DIGIT)
        elif part["type"] == "ByteLevel" and not part.get("add_prefix_space"):
            patterns += [GPT2] if part.get("use_regex", True) else []
        else:
            patterns.append(f"{part['type']} {part}")
    found = tuple(map(_plain, patterns))
    ignoring = bool(model.get("ignore_merges"))
    names = [
        name
        for name, rule in RULES.items()
        if tuple(map(_plain, rule.patterns)) == found and rule.ignore_merges == ignoring
    ]
    if not names:
        raise ModelFormatError(
            f"npurt does not know the pre-tokenizer of tokenizer.json: {' then '.join(found):.300}",
            remedy=OTHER,
        )
    return arch if arch in names else names[0]


def _plain(pattern: str) -> str:
    """Return *pattern* with brackets removed from classes of a single Unicode property."""
    return re.sub(r"(?<!\\)\[(\\p\{\w+\})\]", r"\1", pattern)


def _template(step: dict[str, Any] | None) -> tuple[str | None, str | None]:
    """Return the tokens that the tokenizer adds before and after a text, or None for each."""
    for part in parts(step):
        if part["type"] == "TemplateProcessing":
            pieces = [piece.get("SpecialToken", {}).get("id") for piece in part["single"]]
            return (pieces[0], pieces[-1]) if pieces else (None, None)
    return None, None


def _special(
    folder: Path,
    config: dict[str, Any],
    ids: dict[str, int],
    ends: tuple[str | None, str | None],
    known_roles: dict[str, int],
) -> Keys:
    """Return the keys of the special token ids, and whether to add BOS and EOS to a text.

    Args:
        ends: The tokens that the tokenizer's template adds before and after a text, or None.
        known_roles: Role -> id in tokenizer.model; the other files take precedence.
    """
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found = dict(known_roles)
    listed: list[int] = []
    for settings in (
        read_json(folder / "generation_config.json"),
        read_json(folder / "config.json"),
    ):
        for short in roles:
            value = settings.get(f"{short}_token_id")
            values = value if isinstance(value, list) else [value]
            known = [i for i in values if type(i) is int and 0 <= i < len(ids)]
            found |= {short: known[0]} if known else {}
            listed += known if short == "eos" else []
    for short in roles:
        token = config.get(f"{short}_token")
        text = token.get("content") if isinstance(token, dict) else token
        found |= {short: ids[text]} if text in ids else {}
    keys: Keys = {f"{roles[short]}_token_id": i for short, i in found.items()}
    texts = list(ids)
    turns = [i for i in dict.fromkeys(listed) if i != found.get("eos")]
    turns = [i for i in turns if ENDS.fullmatch(texts[i])] or turns
    if turns:
        keys["eot_token_id"] = turns[0]
    for key, end, role in zip(
        ("add_bos_token", "add_eos_token"), ends, ("bos", "eos"), strict=True
    ):
        stated = config.get(key)
        wanted = (
            stated
            if isinstance(stated, bool)
            else end is not None and ids.get(end) == (found.get(role, -1))
        )
        keys[key] = wanted and role in found
    return keys


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the chat template, or None; a separate file takes precedence over the settings."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            # TextIOWrapper converts \r\n to \n.
            return io.TextIOWrapper(io.BytesIO(content_of(path)), "utf-8").read()
        except (OSError, ValueError) as error:
            raise bad(f"{path.name} cannot be read: {error}") from error
    template = config.get("chat_template") or read_json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if each}
        template = named.get("default")
    return template if isinstance(template, str) else None
