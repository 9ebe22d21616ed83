"""Drafts from a smaller model with the same vocabulary."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npurt.device import F32
from npurt.errors import ModelFormatError
from npurt.llm.gguf import GGUF
from npurt.llm.metadata import strings
from npurt.llm.spec.drafter import Drafter

if TYPE_CHECKING:
    from npurt.llm.model import Llama

MAY_DIFFER = 128  # rows by which padded vocabularies differ (llama.cpp's rule)
SURE = 0.4  # a guess less likely than this, by the draft model itself, ends the draft


class Assistant(Drafter):
    """Guesses what a draft model finds most likely.

    Args:
        draft: The draft model, which belongs to the drafter from now on.
        target: The model it drafts for.
        sure: End a draft at the first token to which the draft model gives less probability.

    Raises:
        ModelFormatError: The vocabularies differ.
    """

    def __init__(self, draft: "Llama", target: "Llama", sure: float = SURE) -> None:
        require_same_vocabulary(draft.file, target.file)
        self.name = f"draft model {draft.path.name}"
        self._draft = draft
        self._n_vocab = min(draft.config.n_vocab, target.config.n_vocab)
        self._sure = sure

    def prepare(self, history: Sequence[int]) -> None:
        """Evaluate all of *history* but its last token."""
        ahead = self._catch_up(history)
        if ahead is not None and len(ahead) > 1:
            self._draft.eval_last(ahead[:-1])

    def propose(self, history: Sequence[int], most: int) -> list[int]:
        """Return up to *most* tokens, each the most likely after those before it."""
        ahead = self._catch_up(history)
        if ahead is None:
            return []
        tokens: list[int] = []
        room = self._draft.n_ctx - len(history) + 1
        while len(tokens) < min(most, room):
            logits = self._draft.eval_last(ahead)[: self._n_vocab]
            token = int(logits.argmax())
            if probability(logits, token) < self._sure:
                break
            tokens.append(token)
            ahead = [token]
        return tokens

    def _catch_up(self, history: Sequence[int]) -> list[int] | None:
        """Forget what is not in *history*; return what is left to evaluate, if that can be."""
        have = shared(self._draft.history, history[:-1])
        ahead = list(history[have:])
        if len(history) > self._draft.n_ctx or max(ahead) >= self._n_vocab:
            return None
        self._draft.rewind(have)
        return ahead

    def close(self) -> None:
        """Close the draft model."""
        self._draft.close()


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens two texts share."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def probability(logits: F32, token: int) -> float:
    """Return the probability of the most likely *token*; 0 when the logits are not finite."""
    total = float(np.exp(logits - logits[token]).sum())
    return 1 / total if total >= 1 else 0.0


def require_same_vocabulary(draft: GGUF, target: GGUF) -> None:
    """Refuse a draft whose tokens mean something else.

    Raises:
        ModelFormatError: Text or number of tokens differ, but for padding at the end.
    """
    a, b = (strings(file.metadata, "tokenizer.ggml.tokens") for file in (draft, target))
    same = min(len(a), len(b))
    wrong = next((i for i in range(same) if a[i] != b[i]), None)
    if abs(len(a) - len(b)) > MAY_DIFFER or wrong is not None:
        where = f"token {wrong} is {a[wrong]!r} and {b[wrong]!r}" if wrong is not None else ""
        raise ModelFormatError(
            f"{draft.path.name} cannot draft for {target.path.name}: vocabularies of {len(a)} and "
            f"{len(b)} tokens; {where}".rstrip("; "),
            remedy="use a smaller model of the same family",
        )
