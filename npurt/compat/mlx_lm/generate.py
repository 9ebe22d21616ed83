"""The functions `generate`, `stream_generate` and `generate_step` of mlx-lm."""

import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.compat.mlx_lm.missing import refuse
from npurt.compat.mlx_lm.models.cache import PromptCache
from npurt.compat.mlx_lm.sample_utils import LogitsProcessor, Sampler, make_sampler
from npurt.compat.mlx_lm.tokenizer_utils import TokenizerWrapper
from npurt.errors import LayoutError, SettingError, brief
from npurt.llm.decode.generate import Generation
from npurt.llm.decode.llama import Llama
from npurt.llm.decode.sampler import Sampling, TokenSampler, greedy
from npurt.llm.decode.samplers.checks import functions
from npurt.llm.decode.samplers.results import returned, unusable
from npurt.runtime.open.arguments import flag, integer, none_at_minus_one

F32 = npt.NDArray[np.float32]
Prompt = str | Sequence[int] | npt.NDArray[Any]


@dataclass
class GenerationResponse:
    """A token of a completion, from `stream_generate`.

    Attributes:
        text: The characters that the token completes, possibly none.
        token: The id of the token.
        logprobs: The log probabilities of all tokens, ``[V]``.
        from_draft: Always False.
        prompt_tokens: The number of tokens of the prompt.
        prompt_tps: Prompt tokens per second.
        generation_tokens: The number of generated tokens so far.
        generation_tps: Generated tokens per second.
        peak_memory: The peak memory of the process so far, in GB.
        finish_reason: ``"stop"`` or ``"length"`` in the last response, None in earlier responses.
    """

    text: str
    token: int
    logprobs: F32
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None = None


class _FunctionSampler(TokenSampler):
    """A sampler that calls the caller's functions, and stores the tokens that they sample."""

    def __init__(
        self,
        sampler: Sampler,
        processors: Sequence[LogitsProcessor],
        never: Sequence[int],
        before: int,
    ) -> None:
        """Set the functions.  The processors do not receive the first *before* tokens."""
        super().__init__(Sampling(temperature=0.0))
        self._sampler = sampler
        self._processors = processors
        self._excluded = list(never)
        self._before = before
        self.chosen: deque[tuple[int, F32]] = deque()

    def sample(self, logits: F32, history: Sequence[int] = ()) -> int:
        greedy(logits)  # raises an error if the model's logits are invalid
        row = logits[None].copy()
        row[:, self._excluded] = -np.inf
        if self._processors:
            tokens = np.array(history[self._before :], np.int64)
            for processor in self._processors:
                row = returned(processor(tokens, row), (1, len(logits)))
        best = row.max()
        if not np.isfinite(best):
            raise unusable(f"the largest logit is {best}")
        logprobs = row - best - np.log(np.exp(row - best).sum())
        tokens = np.asarray(self._sampler(logprobs)).reshape(-1)
        whole = tokens.size == 1 and np.issubdtype(tokens.dtype, np.integer)
        if not whole or not 0 <= tokens[0] < len(logits):
            raise LayoutError(
                f"the sampler returned {brief(tokens)}",
                remedy=f"return one id from 0 to {len(logits) - 1}, in an array [1]",
            )
        self.chosen.append((int(tokens[0]), logprobs[0]))
        return int(tokens[0])


def generate_step(
    prompt: Sequence[int] | npt.NDArray[Any],
    model: Llama,
    stream: Any = None,
    *,
    max_tokens: int = 256,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    max_kv_size: int | None = None,
    prompt_cache: Sequence[PromptCache] | None = None,
    prefill_step_size: int = 2048,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = 5000,
    prompt_progress_callback: Callable[[int, int], object] | None = None,
    input_embeddings: Any = None,
) -> Iterator[tuple[int, F32]]:
    """Yield each token, also the end token, with the log probabilities ``[V]`` of all tokens.

    Args:
        prompt: Token ids, appended to the tokens of *prompt_cache*.
        model: The model from `load`.
        stream: No effect.
        max_tokens: The maximum number of tokens; -1 for no limit.
        sampler: A function of log probabilities ``[1, V]`` that returns ids ``[1]``; the default
            selects the most likely token.
        logits_processors: Functions of the tokens so far ``[T]``, without the tokens of
            *prompt_cache*, and logits ``[1, V]`` that return logits.
        max_kv_size: Refused unless None.
        prompt_cache: The result of `make_prompt_cache`; afterwards it contains all tokens.
        prefill_step_size: No effect.
        kv_bits: Refused unless None.
        kv_group_size: No effect.
        quantized_kv_start: No effect.
        prompt_progress_callback: A function of two numbers: the evaluated tokens and all tokens of
            the prompt.  The function is called before and after the evaluation.
        input_embeddings: Refused unless None.

    Raises:
        ContextFull: The prompt does not fit in the context.
        SettingError: *max_tokens* is invalid, or another generation changed the model's context.
        UnsupportedOp: npurt does not support an option.
    """
    refuse(locals(), "max_kv_size", "kv_bits", "input_embeddings")
    if sampler is not None and not callable(sampler):
        raise SettingError(f"sampler is {brief(sampler)}", remedy="sampler must be a function")
    ids = model.model.valid(prompt)
    cache = PromptCache() if prompt_cache is None else prompt_cache[0]
    before = list(cache.tokens)
    function = _FunctionSampler(
        sampler or make_sampler(),
        functions("logits_processors", logits_processors),
        sorted(model.tokenizer.never_sampled),
        len(before),
    )
    report = prompt_progress_callback or (lambda *_: None)
    report(0, len(ids))
    with model.lock:
        cache.enter(model)
    limit = none_at_minus_one("max_tokens", max_tokens)
    text = Generation(model.generator, before + ids, function, (), limit)
    written: list[int] = []
    try:
        for token in text.tokens():
            if not written:
                report(len(ids), len(ids))
            written.append(token)
            yield function.chosen.popleft()
        if function.chosen:  # the end token
            written.append(function.chosen[0][0])
            yield function.chosen.popleft()
    finally:
        if written and prompt_cache is not None:
            cache.leave(model, before + ids + written)


def stream_generate(
    model: Llama,
    tokenizer: TokenizerWrapper,
    prompt: Prompt,
    max_tokens: int = 256,
    draft_model: Any = None,
    stream: Any = None,
    **kwargs: Any,
) -> Iterator[GenerationResponse]:
    """Yield the completion of *prompt*, token by token.

    Args:
        model: The model from `load`.
        tokenizer: The tokenizer from `load`.
        prompt: Text or token ids.
        max_tokens: The maximum number of tokens; -1 for no limit.
        draft_model: Refused unless None; use ``load(..., draft=FILE)`` instead.
        stream: No effect.
        kwargs: Arguments of `generate_step`.

    Raises:
        ContextFull: The prompt does not fit in the context.
        SettingError: *max_tokens* is 0.
        UnsupportedOp: npurt does not support an option.
    """
    refuse(locals(), "draft_model")
    kwargs.pop("num_draft_tokens", None)
    if not isinstance(model, Llama) or not isinstance(tokenizer, TokenizerWrapper):
        raise SettingError(
            f"model is {brief(model)} and tokenizer {brief(tokenizer)}",
            remedy="pass the result of npurt.compat.mlx_lm.load",
        )
    if integer("max_tokens", max_tokens, -1) == 0:
        raise SettingError("max_tokens is 0", remedy="use 1 or more, or -1 for no limit")
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        prompt = tokenizer.encode(prompt, add_special_tokens=not (bos and prompt.startswith(bos)))
    else:
        prompt = model.model.valid(prompt)
    steps = generate_step(prompt, model, max_tokens=max_tokens, **kwargs)
    text, start, count, rate = tokenizer.detokenizer, time.perf_counter(), 0, 0.0

    def response(token: int, logprobs: F32, finish: str | None = None) -> GenerationResponse:
        passed = time.perf_counter() - start
        return GenerationResponse(
            text=text.last_segment, token=token, logprobs=logprobs, from_draft=False,
            prompt_tokens=len(prompt), prompt_tps=rate, generation_tokens=count,
            generation_tps=count / passed if passed else 0.0,
            peak_memory=_peak_memory(),
            finish_reason=finish,
        )  # fmt: skip

    finish = "length"
    for token, logprobs in steps:
        count += 1
        if count == 1:
            rate = len(prompt) / max(time.perf_counter() - start, 1e-9)
            start = time.perf_counter()
        if token in tokenizer.eos_token_ids:
            finish = "stop"
            break
        text.add_token(token)
        if count == max_tokens:
            break
        yield response(token, logprobs)
    steps.close()  # type: ignore[attr-defined]
    text.finalize()
    yield response(token, logprobs, finish)


def generate(
    model: Llama, tokenizer: TokenizerWrapper, prompt: Prompt, verbose: bool = False, **kwargs: Any
) -> str:
    """Return the completion of *prompt*.

    Args:
        model: The model from `load`.
        tokenizer: The tokenizer from `load`.
        prompt: Text or token ids.
        verbose: Print the completion while it is generated, and the rates.
        kwargs: Arguments of `stream_generate`.

    Raises:
        ContextFull: The prompt does not fit in the context.
        SettingError: *max_tokens* is 0.
        UnsupportedOp: npurt does not support an option.
    """
    write = sys.stdout.write if flag("verbose", verbose) else (lambda _: 0)
    write("=" * 10 + "\n")
    text = ""
    for response in stream_generate(model, tokenizer, prompt, **kwargs):
        write(response.text)
        if verbose:
            sys.stdout.flush()
        text += response.text
    write("\n" + "=" * 10 + "\n")
    for name, count, rate in (
        ("Prompt", response.prompt_tokens, response.prompt_tps),
        ("Generation", response.generation_tokens, response.generation_tps),
    ):
        write(f"{name}: {count} tokens, {rate:.3f} tokens-per-sec\n")
    write(f"Peak memory: {response.peak_memory:.3f} GB\n")
    return text


def _peak_memory() -> float:
    """Return the peak memory of the process in GB, or 0 if the system does not report it."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024  # bytes in one unit of ru_maxrss
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * unit / 1e9
