"""Classes of llama-cpp-python other than `Llama`: processors, states, drafters, grammars."""

import abc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from npurt.compat.sampling import F32, Criterion, Ids, Processor
from npurt.llm.decode.grammar.grammar import MAX_TEXT, Grammar
from npurt.llm.decode.samplers.results import says_end
from npurt.llm.state.state import Snapshot
from npurt.llm.state.state_file import SavedState
from npurt.runtime.open.arguments import require_path

LogitsProcessor = Processor
StoppingCriteria = Criterion


class LogitsProcessorList(list[LogitsProcessor]):
    """A list of functions that change logits, applied in order."""

    def __call__(self, input_ids: Ids, scores: F32) -> F32:
        """Return *scores* after applying all functions."""
        for processor in self:
            scores = processor(input_ids, scores)
        return scores


class StoppingCriteriaList(list[StoppingCriteria]):
    """A list of functions, any of which can end a completion."""

    def __call__(self, input_ids: Ids, logits: F32) -> bool:
        """Return whether one of the functions ends the completion."""
        return any(says_end(criterion, input_ids, logits) for criterion in self)


class MinTokensLogitsProcessor:
    """A logits processor that prevents the end of one completion before *min_tokens* tokens."""

    def __init__(self, min_tokens: int, token_eos: int) -> None:
        self.min_tokens = min_tokens
        self.token_eos = token_eos
        self.prompt_tokens: int | None = None

    def __call__(self, input_ids: Ids, scores: F32) -> F32:
        """Return *scores*, with the end token excluded while the completion is too short."""
        if self.prompt_tokens is None:
            self.prompt_tokens = len(input_ids)
        if len(input_ids) - self.prompt_tokens < self.min_tokens:
            scores[self.token_eos] = -np.inf
        return scores


@dataclass(frozen=True)
class LlamaState:
    """A saved state, from `Llama.save_state`.

    Attributes:
        input_ids: The tokens of the context, ``[n_tokens]``.
        scores: The logits that `eval` computed, ``[rows, n_vocab]``, for the last token or all.
        n_tokens: The number of tokens in the context.
        llama_state: npurt's copy of the state, in memory or in a file.
        llama_state_size: The size of *llama_state* in bytes.
        seed: The seed of later completions; None for random seeds.
    """

    input_ids: Ids
    scores: F32
    n_tokens: int
    llama_state: Snapshot | SavedState
    llama_state_size: int
    seed: int | None


class LlamaDraftModel(abc.ABC):
    """The interface of a drafter; npurt accepts only `LlamaPromptLookupDecoding`."""

    @abc.abstractmethod
    def __call__(self, input_ids: Ids, /, **options: Any) -> Ids:
        """Return tokens that may follow *input_ids*."""


class LlamaPromptLookupDecoding(LlamaDraftModel):
    """A drafter that looks up the last n-gram in the tokens of the context (prompt lookup).

    `Llama` uses only *num_pred_tokens*; npurt chooses the length of the n-grams.

    Args:
        max_ngram_size: The maximum length of the n-gram.
        num_pred_tokens: The maximum number of draft tokens.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size = max_ngram_size
        self.num_pred_tokens = num_pred_tokens

    @staticmethod
    def find_candidate_pred_tokens(
        input_ids: Ids, max_ngram_size: int, num_pred_tokens: int
    ) -> Ids:
        """Return the tokens after the first earlier occurrence of the longest final n-gram."""
        ids = np.asarray(input_ids)
        for size in range(min(max_ngram_size, len(ids) - 1), 0, -1):
            for start in range(len(ids) - size):
                if np.array_equal(ids[start : start + size], ids[-size:]):
                    return ids[start + size : start + size + num_pred_tokens]
        return np.empty(0, np.intc)

    def __call__(self, input_ids: Ids, /, **options: Any) -> Ids:
        """Return the draft that `find_candidate_pred_tokens` finds."""
        return self.find_candidate_pred_tokens(input_ids, self.max_ngram_size, self.num_pred_tokens)


class LlamaGrammar(Grammar):
    """A grammar for completions.

    *verbose* has no effect, because npurt does not print grammars to stderr.
    """

    __slots__ = ()

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> Self:
        """Return the grammar in GBNF; see `npurt.Grammar.from_gbnf`."""
        del verbose
        return cls.from_gbnf(grammar)

    @classmethod
    def from_file(cls, file: str | os.PathLike[str], verbose: bool = True) -> Self:
        """Return the grammar of a file; see `from_string`.

        Raises:
            GrammarError: The grammar is invalid or too large.
            OSError: The file cannot be read.
            SettingError: *file* is no path.
        """
        with open(require_path(file), encoding="utf-8", errors="replace") as opened:
            return cls.from_string(opened.read(MAX_TEXT + 1), verbose)

    @classmethod
    def from_json_schema(
        cls, json_schema: str | bool | Mapping[str, Any], verbose: bool = True
    ) -> Self:
        """Return the grammar of a JSON schema; see `npurt.Grammar.from_json_schema`."""
        del verbose
        return super().from_json_schema(json_schema)
