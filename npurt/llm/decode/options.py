"""The options of `Llama.generate` and `Llama.chat`: names as in llama-cpp-python and OpenAI."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypedDict, TypeVar

import numpy as np

from npurt.errors import LayoutError, SettingError, UnsupportedOp, brief
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar, grammar_of
from npurt.llm.decode.sampler import Criterion, Processor, TokenSampler
from npurt.llm.decode.samplers.breakers import breakers_of
from npurt.llm.decode.samplers.checks import functions
from npurt.llm.decode.samplers.settings import Sampling
from npurt.llm.decode.stops import split_stops
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.open.arguments import flag, integer, none_at_minus_one, optional_integer

# Options of llama-cpp-python, mlx-lm and OpenAI's API that npurt does not support, each with its
# neutral value: the value that has no effect.
MISSING: dict[str, Any] = {
    "best_of": 1, "function_call": None, "functions": None, "mirostat_eta": 0.1,
    "mirostat_mode": 0, "mirostat_tau": 5.0, "suffix": None, "tfs_z": 1.0, "tool_choice": "auto",
}  # fmt: skip
SAMPLING = frozenset(field.name for field in fields(Sampling)) - {"seed"}
MAX_TOP_LOGPROBS = 1000

S = TypeVar("S", bound=TokenSampler)
Stop = str | int | Sequence[str | int]


class Options(TypedDict, total=False):
    """The options of `Llama.generate` and `Llama.chat`.  None stands for the default."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    seed: int | None
    stop: Stop | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str] | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repeat_last_n: int | None
    logit_bias: Mapping[int, float] | None
    ignore_eos: bool | None
    min_tokens: int | None
    logits_processor: Processor | Sequence[Processor] | None
    stopping_criteria: Criterion | Sequence[Criterion] | None
    logprobs: bool | int | None
    top_logprobs: int | None
    grammar: Grammar | str | None
    response_format: Mapping[str, Any] | None
    special: bool | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The checked options of one generation.

    Attributes:
        stops: Texts that end the completion.
        stop_ids: Token ids that end the completion.
        max_tokens: The largest number of tokens to generate; None means no limit.
        top_logprobs: The number of likeliest tokens to store with each token; None stores no log
            probabilities.
        grammar: The grammar of the completion; None allows any text.
        special: Whether the text contains control tokens.
    """

    sampling: Sampling
    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    max_tokens: int | None
    top_logprobs: int | None
    processors: tuple[Processor, ...]
    criteria: tuple[Criterion, ...]
    ignore_eos: bool
    min_tokens: int
    grammar: Grammar | None = None
    special: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], seed: int | None) -> "GenerationRequest":
        """Check *options* and return the request; *seed* is the default seed.

        Raises:
            GrammarError: The grammar is wrong, or too large.
            SettingError: The value of an option is invalid.
            TypeError: An option is unknown.
            UnsupportedOp: npurt does not support an option.
        """
        given = without_missing(options)
        for name in given.keys() - Options.__annotations__.keys():
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
        chosen = {name: given[name] for name in SAMPLING & given.keys() if given[name] is not None}
        own = given.get("seed")
        chosen["seed"] = none_at_minus_one("seed", seed if own is None else own)
        stops, stop_ids = split_stops(given.get("stop"))
        return cls(
            sampling=Sampling(**chosen),
            stops=stops,
            stop_ids=stop_ids,
            max_tokens=none_at_minus_one("max_tokens", given.get("max_tokens")),
            top_logprobs=top_logprobs_of(given.get("logprobs"), given.get("top_logprobs")),
            processors=functions("logits_processor", given.get("logits_processor")),
            criteria=functions("stopping_criteria", given.get("stopping_criteria")),
            ignore_eos=flag("ignore_eos", given.get("ignore_eos")),
            min_tokens=optional_integer("min_tokens", given.get("min_tokens"), 0) or 0,
            grammar=grammar_of(given.get("grammar"), given.get("response_format")),
            special=flag("special", given.get("special")),
        )

    def nth(self, i: int) -> Self:
        """Return the request for completion *i* of several, with *i* added to the seed.

        Raises:
            SettingError: The sum exceeds the largest seed.
        """
        seed = self.sampling.seed
        if seed is None or not i:
            return self
        return replace(self, sampling=replace(self.sampling, seed=seed + i))

    def sampler(self, tokenizer: Tokenizer, prompt: int, kind: type[S]) -> S:
        """Return a sampler of class *kind* for a prompt of *prompt* tokens.

        Raises:
            LayoutError: An id of *logit_bias* or *stop* is not in the vocabulary.
        """
        _require_known("logit_bias", self.sampling.logit_bias, tokenizer)
        _require_known("stop", self.stop_ids, tokenizer)
        texts = self.sampling.dry_sequence_breakers if self.sampling.dry_multiplier > 0 else ()
        never = tokenizer.never_sampled
        return kind(
            self.sampling,
            never | tokenizer.eog if self.ignore_eos else never,
            processors=self.processors,
            criteria=self.criteria,
            breakers=breakers_of(tokenizer, texts) if texts else None,
            ends=tokenizer.eog | self.stop_ids,
            begins=prompt + self.min_tokens,
            constraint=Constraint(self.grammar, tokenizer, prompt) if self.grammar else None,
        )


def _require_known(name: str, ids: Iterable[int], tokenizer: Tokenizer) -> None:
    wrong = max(ids, default=0)
    if wrong >= tokenizer.n_vocab:
        raise LayoutError(
            f"{name} has token id {wrong}, which is not in the vocabulary of {tokenizer.n_vocab}",
            remedy="pass ids from tokenize() of this model",
        )


def without_missing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return *options* without the options in `MISSING`.

    Raises:
        UnsupportedOp: An option in `MISSING` has a value other than None and its neutral value.
    """
    for name in MISSING.keys() & options.keys():
        if not asks_for_nothing(options[name], MISSING[name]):
            raise UnsupportedOp(f"npurt does not have {name} yet", remedy=f"leave {name} out")
    return {name: value for name, value in options.items() if name not in MISSING}


def asks_for_nothing(value: Any, neutral: Any) -> bool:
    """Return whether *value* is None or equals *neutral*; False and 0 count as different."""
    alike = isinstance(value, bool) == isinstance(neutral, bool)
    return value is None or (alike and not isinstance(value, np.ndarray) and bool(value == neutral))


def top_logprobs_of(logprobs: Any, top: Any) -> int | None:
    """Return the number of likeliest tokens to store with each token; None for no logprobs.

    Args:
        logprobs: A bool, as in OpenAI's chat API, or the number, as in OpenAI's completions API.
        top: The number, as in the chat API; overrides a number in *logprobs*.

    Raises:
        SettingError: A number is not in 0..`MAX_TOP_LOGPROBS`, or *top* is given without
            *logprobs*.
    """
    count = None if top is None else integer("top_logprobs", top, 0, MAX_TOP_LOGPROBS)
    if logprobs is None or logprobs is False:
        if count is not None:
            raise SettingError(
                f"top_logprobs is {brief(count)} without logprobs",
                remedy="pass logprobs=True as well",
            )
        return None
    number = 0 if logprobs is True else integer("logprobs", logprobs, 0, MAX_TOP_LOGPROBS)
    return number if count is None else count
