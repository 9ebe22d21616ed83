"""`batch_generate`, which generates completions of several prompts, one after another.

The completions equal those of a batch, because a completion does not depend on other prompts.
`npurt.Engine` evaluates several sequences in one batch.
"""

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npurt.compat.mlx_lm.generate import GenerationResponse, stream_generate
from npurt.compat.mlx_lm.models.cache import PromptCache, make_prompt_cache
from npurt.compat.mlx_lm.tokenizer_utils import TokenizerWrapper
from npurt.errors import SettingError, brief
from npurt.llm.decode.llama import Llama
from npurt.runtime.open.arguments import flag, listed

# Batch sizes, which do not change completions.
IGNORED = frozenset(["completion_batch_size", "prefill_batch_size", "prefill_step_size"])


@dataclass
class BatchStats:
    """The tokens and seconds of all prompts and completions, and the peak memory in GB."""

    prompt_tokens: int = 0
    prompt_time: float = 0.0
    generation_tokens: int = 0
    generation_time: float = 0.0
    peak_memory: float = 0.0

    @property
    def prompt_tps(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prompt_time if self.prompt_time else 0.0

    @property
    def generation_tps(self) -> float:
        """Generated tokens per second."""
        return self.generation_tokens / self.generation_time if self.generation_time else 0.0

    def add(self, last: GenerationResponse) -> None:
        """Add the counts of a completion, whose last response is *last*."""
        self.prompt_tokens += last.prompt_tokens
        self.prompt_time += last.prompt_tokens / last.prompt_tps if last.prompt_tps else 0.0
        self.generation_tokens += last.generation_tokens
        rate = last.generation_tps
        self.generation_time += last.generation_tokens / rate if rate else 0.0
        self.peak_memory = last.peak_memory


@dataclass
class BatchResponse:
    """The result of `batch_generate`.

    Attributes:
        texts: The completion of each prompt.
        stats: Counts and rates.
        caches: The prompt cache after each completion, if requested.
        token_ids: The tokens of each completion without the end token, if requested.
        logprobs: The log probability of each token in *token_ids*, if requested.
    """

    texts: list[str]
    stats: BatchStats
    caches: list[list[PromptCache]] | None = None
    token_ids: list[list[int]] | None = None
    logprobs: list[list[float]] | None = None


def batch_generate(
    model: Llama,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    prompt_caches: Sequence[Sequence[PromptCache]] | None = None,
    max_tokens: int | Sequence[int] = 128,
    verbose: bool = False,
    return_prompt_caches: bool = False,
    return_token_ids: bool = False,
    return_logprobs: bool = False,
    **kwargs: Any,
) -> BatchResponse:
    """Return the completions of *prompts*, which are evaluated one after another.

    Args:
        model: The model from `load`.
        tokenizer: The tokenizer from `load`.
        prompts: The token ids of each prompt.
        prompt_caches: A cache for each prompt; the caches are not changed.
        max_tokens: The maximum number of tokens, for all completions or for each.
        verbose: Print the progress and the rates.
        return_prompt_caches: Return the caches after the completions.
        return_token_ids: Return the tokens.
        return_logprobs: Return the log probabilities of the tokens.
        kwargs: As for `generate_step`; batch sizes have no effect.

    Raises:
        ContextFull: A prompt does not fit in the context.
        SettingError: *prompt_caches* or *max_tokens* differ in length from *prompts*.
        UnsupportedOp: npurt does not support an option.
    """
    asked = listed("prompts", prompts, "a list of prompts, each a list of token ids")
    limits = [max_tokens] * len(asked) if isinstance(max_tokens, int) else list(max_tokens)
    caches = [[copy.copy(cache) for cache in each] for each in prompt_caches or ()]
    if prompt_caches is None:
        caches = [make_prompt_cache(model) for _ in asked]
    if not len(limits) == len(caches) == len(asked):
        raise SettingError(
            f"there are {len(asked)} prompts, max_tokens {brief(max_tokens)} and {len(caches)} "
            "prompt caches",
            remedy="pass a cache and a number for each prompt, or one number for all",
        )
    options = {name: value for name, value in kwargs.items() if name not in IGNORED}
    wanted = flag("return_prompt_caches", return_prompt_caches)
    write = sys.stdout.write if flag("verbose", verbose) else (lambda _: 0)
    texts, ids, logprobs, stats = list[str](), list[list[int]](), list[list[float]](), BatchStats()
    for prompt, cache, limit in zip(asked, caches, limits, strict=True):
        options["prompt_cache"] = cache if wanted or cache[0].tokens else None
        responses = list(stream_generate(model, tokenizer, prompt, limit, **options))
        written = [each for each in responses if each.finish_reason != "stop"]
        texts.append("".join(each.text for each in responses))
        ids.append([each.token for each in written])
        logprobs.append([float(each.logprobs[each.token]) for each in written])
        stats.add(responses[-1])
        write(f"[batch_generate] {len(texts)} of {len(asked)} texts are done\n")
    write(
        f"[batch_generate] Prompt: {stats.prompt_tokens} tokens, {stats.prompt_tps:.3f} "
        f"tokens-per-sec\n[batch_generate] Generation: {stats.generation_tokens} tokens, "
        f"{stats.generation_tps:.3f} tokens-per-sec\n"
        f"[batch_generate] Peak memory: {stats.peak_memory:.3f} GB\n"
    )
    return BatchResponse(
        texts,
        stats,
        caches if wanted else None,
        ids if flag("return_token_ids", return_token_ids) else None,
        logprobs if flag("return_logprobs", return_logprobs) else None,
    )
