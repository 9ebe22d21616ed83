"""`batch_generate`: the texts that follow several prompts, one after another.

The texts are those that batches would have: they do not depend on what else a model evaluates.
`npurt.Engine` evaluates several texts together.
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
from npurt.llm.decode.model import Llama
from npurt.runtime.open.arguments import flag, listed

# Of the machine: they change no text.
IGNORED = frozenset(["completion_batch_size", "prefill_batch_size", "prefill_step_size"])


@dataclass
class BatchStats:
    """Counts of all prompts and texts, seconds for both, and the most memory in GB."""

    prompt_tokens: int = 0
    prompt_time: float = 0.0
    generation_tokens: int = 0
    generation_time: float = 0.0
    peak_memory: float = 0.0

    @property
    def prompt_tps(self) -> float:
        """Tokens of prompts a second."""
        return self.prompt_tokens / self.prompt_time if self.prompt_time else 0.0

    @property
    def generation_tps(self) -> float:
        """Tokens of texts a second."""
        return self.generation_tokens / self.generation_time if self.generation_time else 0.0

    def add(self, last: GenerationResponse) -> None:
        """Add a text, which ended with the response *last*."""
        self.prompt_tokens += last.prompt_tokens
        self.prompt_time += last.prompt_tokens / last.prompt_tps if last.prompt_tps else 0.0
        self.generation_tokens += last.generation_tokens
        rate = last.generation_tps
        self.generation_time += last.generation_tokens / rate if rate else 0.0
        self.peak_memory = last.peak_memory


@dataclass
class BatchResponse:
    """What `batch_generate` returns.

    Attributes:
        texts: The text that follows each prompt.
        stats: Counts and rates.
        caches: The prompt cache after each text, if they were wanted.
        token_ids: The tokens of each text without the end token, if they were wanted.
        logprobs: The logarithms of their probabilities, if they were wanted.
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
    """Return the texts that follow *prompts*, which are evaluated one after another.

    Args:
        model: What `load` returned.
        tokenizer: The same.
        prompts: Token ids of each.
        prompt_caches: A cache for each, which is not changed.
        max_tokens: The most tokens of each text, or a number for each.
        verbose: Print how far it is, and how fast it was.
        return_prompt_caches: Return the caches after the texts.
        return_token_ids: Return the tokens.
        return_logprobs: Return the logarithms of their probabilities.
        kwargs: As for `generate_step`; sizes of batches have no effect.

    Raises:
        ContextFull: A prompt does not fit.
        SettingError: There is not one of *prompt_caches* or *max_tokens* for each prompt.
        UnsupportedOp: npurt does not have an option.
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
            remedy="pass one for each prompt, or one number",
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
