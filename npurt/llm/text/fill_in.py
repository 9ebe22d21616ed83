"""Build prompts for filling in the middle between a prefix and a suffix."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npurt.llm.text.tokenizer import Tokenizer

# Role -> the metadata keys of the token, as current and older versions of llama.cpp's gguf-py write
# them, and the token's possible texts in files without the keys.
MARKERS = {
    "prefix": (("fim_pre", "prefix"), ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>")),
    "suffix": (("fim_suf", "suffix"), ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>")),
    "middle": (("fim_mid", "middle"), ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>")),
}


@dataclass(frozen=True, slots=True)
class FillIn:
    """The marker tokens before the prefix, before the suffix, and before the generated middle."""

    prefix: int
    suffix: int
    middle: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> "FillIn | None":
        """Return the marker tokens of a model, or None if the model has none."""
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
        """Return a prompt whose completion is the text between *before* and *after*.

        Args:
            suffix_first: Place *after* first in the prompt, as in the training of some models.
        """
        head = [tokenizer.bos] if tokenizer.add_bos and tokenizer.bos is not None else []
        parts = [
            [self.prefix, *tokenizer.encode(before, add_bos=False, special=False)],
            [self.suffix, *tokenizer.encode(after, add_bos=False, special=False)],
        ]
        first, second = reversed(parts) if suffix_first else parts
        return [*head, *first, *second, self.middle]
