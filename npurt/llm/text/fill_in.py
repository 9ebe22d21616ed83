"""Fill in a gap in a text: the tokens that stand around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npurt.llm.text.tokenizer import Tokenizer

# Keys of these tokens, as llama.cpp's gguf-py writes them and wrote them before, and their texts in
# files that have no key.
MARKERS = {
    "prefix": (("fim_pre", "prefix"), ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>")),
    "suffix": (("fim_suf", "suffix"), ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>")),
    "middle": (("fim_mid", "middle"), ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>")),
}


@dataclass(frozen=True, slots=True)
class FillIn:
    """The tokens before a prefix, before a suffix, and before what stands between them."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> "FillIn | None":
        """Return those of a model; None if it cannot fill in text."""
        found = {}
        for role, (keys, texts) in MARKERS.items():
            named = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
            spelt = [tokenizer.encode(text, add_bos=False) for text in texts]
            ids = [i for i in named if isinstance(i, int) and 0 <= i < tokenizer.n_vocab]
            ids += [each[0] for each in spelt if len(each) == 1]
            if ids:
                found[role] = ids[0]
        return cls(**found) if found.keys() == MARKERS.keys() else None

    def around(
        self, tokenizer: Tokenizer, before: str, after: str, *, suffix_first: bool = False
    ) -> list[int]:
        """Return a prompt whose continuation stands between *before* and *after*.

        Args:
            suffix_first: Write *after* before *before*, which some models were trained with.
        """
        head = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
        parts = [
            [self.prefix, *tokenizer.encode(before, add_bos=False, special=False)],
            [self.suffix, *tokenizer.encode(after, add_bos=False, special=False)],
        ]
        first, second = reversed(parts) if suffix_first else parts
        return [*head, *first, *second, self.middle]
