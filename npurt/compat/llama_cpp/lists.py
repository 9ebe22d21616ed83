"""The classes of llama-cpp-python beside `Llama`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from npurt.compat.llama_cpp.arguments import missing
from npurt.compat.sampling import F32, Criterion, Ids, Processor
from npurt.llm.state.state import Snapshot

LogitsProcessor = Processor
StoppingCriteria = Criterion


class LogitsProcessorList(list[LogitsProcessor]):
    """Functions that change logits, one after another."""

    def __call__(self, input_ids: Ids, scores: F32) -> F32:
        """Return *scores* as all functions leave them."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """Functions that say whether a text ends."""

    def __call__(self, input_ids: Ids, logits: F32) -> bool:
        """Return whether one of them says so."""
        return any(criterion(input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """Keeps a text from ending before it has *min_tokens* tokens; for one completion."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: F32) -> F32:
        """Return *scores*, with the end token excluded while the text is too short."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


@dataclass(frozen=True)
class LlamaState:
    """What `Llama.save_state` returns.

    Attributes:
        input_ids: The tokens of the context, ``[n_tokens]``.
        scores: The logits after the last of them, ``[1, n_vocab]``; ``[0, n_vocab]`` if unknown.
        n_tokens: Their number.
        llama_state: npurt's copy of the state.
        llama_state_size: Its size in bytes.
        seed: Of the completions that follow; None: a different one each time.
    """

    input_ids: Ids
    scores: F32
    n_tokens: int
    llama_state: Snapshot
    llama_state_size: int
    seed: int | None


@dataclass
class LlamaPromptLookupDecoding:
    """Drafts from the text itself: npurt's own, which chooses the length of its n-grams."""

    max_ngram_size: int = 2
    num_pred_tokens: int = 10


class LlamaGrammar:
    """Grammars, which npurt does not have yet: each way to make one says so."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise missing("LlamaGrammar")

    @classmethod
    def from_string(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse."""
        raise missing("LlamaGrammar")

    from_file: Callable[..., NoReturn] = from_string
    from_json_schema: Callable[..., NoReturn] = from_string
