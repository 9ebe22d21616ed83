"""The front: a model, its engine, and the active requests."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.errors import NpurtError
from npurt.llm.decode.samplers.settings import Sampling
from npurt.serve.engine.client import EngineClient
from npurt.serve.engine.protocol import Ready, Submit
from npurt.serve.front.generation import Choice, Texts
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import limits
from npurt.serve.http import log as request_log
from npurt.serve.http.errors import HttpError, of, wrong

DRAIN_SECONDS = 30.0
LAST_SECONDS = 2.0  # timeout for sending the final error to clients
LONGEST_RETRY = 60  # seconds; upper bound on Retry-After
PATIENCE = 2.0  # seconds; see `Texts`
SEEDS = 1 << 63
DRAWN_SEEDS = 1 << 32  # drawn seeds are below this bound, so that every JSON parser keeps them


@dataclass(slots=True)
class ServerSettings:
    """The server's settings for requests.

    Attributes:
        sampling: Default sampling settings of a request.
        max_tokens: Default limit on generated tokens; None: no limit.
        deadline: Upper bound on the duration of a request, in seconds.
        ping: Seconds without output after which a stream gets a keep-alive event.
        embeddings: Whether the server computes embeddings only.
        lora: The file name and the scale of each LoRA adapter.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    deadline: float = 600.0
    ping: float = 5.0
    embeddings: bool = False
    lora: Sequence[tuple[str, float]] = ()


@dataclass(slots=True)
class SamplingParams:
    """The options of a request, without its prompt.

    Attributes:
        sampling: Fields of `Sampling`.
        biased_texts: Biases of the logits of all tokens of a text, by text.
        max_tokens: Upper bound on the tokens of a completion; None: the server's default.
        stops: Strings that end a completion.
        stop_ids: Token ids that end a completion.
        choices: Number of completions per prompt.
        ignore_eos, min_tokens, top_logprobs: See `Submit`.
        prompt_logprobs: Whether log probabilities of the prompt's tokens are requested.
        shown: Ids of control tokens whose text is part of the output.
        salt: The salt of the prefix cache, which differs for each API key.
        grammar, response_format, lark: Constraint of a completion; see `Submit`.
        embed: Whether the request is for the embeddings of the prompts.
        scales: The scale of each LoRA adapter by its number; None: the server's scales.
        normalize: Whether embeddings are scaled to length 1.
        pairs: For a reranker, the position of the second text in each prompt, as in `Submit`.
        predict_ms: Time from the first token to the end of a completion; None: no limit.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    biased_texts: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    stops: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    choices: int = 1
    ignore_eos: bool = False
    min_tokens: int = 0
    top_logprobs: int | None = None
    shown: frozenset[int] = frozenset()
    salt: str = ""
    grammar: str | None = None
    response_format: Mapping[str, Any] | None = None
    lark: str | None = None
    prompt_logprobs: bool = False
    scales: Mapping[int, float] | None = None
    embed: bool = False
    normalize: bool = True
    pairs: Sequence[int] = ()
    predict_ms: int | None = None

    @property
    def constrained(self) -> bool:
        """Whether the request has a constraint of its own."""
        return bool(self.grammar or self.response_format or self.lark)


@dataclass(slots=True)
class ServerCounts:
    """Counts since the server's start."""

    requests: int = 0
    refused: int = 0  # requests refused because the queue was full
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    longest: int = 0  # the largest number of tokens of a prompt and its completion
    queue_seconds: float = 0.0  # sums over all ended sequences
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    timed_tokens: int = 0  # tokens generated in these seconds: all but the first of a completion
    seconds: float = 0.0  # sum of the durations of ended sequences, from request to end
    ended: int = 0  # ended sequences


@dataclass(frozen=True, slots=True)
class OnDemand:
    """The start of the engine by the first sequence.

    Attributes:
        expected: The expected `Ready` message of the engine, used until it is ready.
        start: Starts the engine if it is not running.  If it raises, the request is refused.
    """

    expected: Ready
    start: Callable[[], None]


class Front:
    """A model that answers requests.

    Args:
        on_demand: The start of the engine by the first sequence; None: the engine is started
            elsewhere, and requests are refused until it is ready.
        counts: Counts to continue, such as those of an earlier front of the model.

    Attributes:
        counts: Counts of requests and tokens.
        draining: Whether the server is shutting down and refuses new requests.
    """

    def __init__(
        self,
        model: ServedModel,
        engine: EngineClient,
        settings: ServerSettings,
        *,
        on_demand: OnDemand | None = None,
        counts: ServerCounts | None = None,
    ) -> None:
        self.model = model
        self.engine = engine
        self.settings = settings
        self.counts = counts or ServerCounts()
        self.draining = False
        self._on_demand = on_demand
        self._failure: HttpError | None = None
        self._under_way: set[Texts] = set()

    # --- Admission ------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Number of sequences that are running or waiting."""
        return sum(len(texts.choices) for texts in self._under_way)

    @property
    def running(self) -> list[Choice]:
        """The completions that the engine evaluates, in the order of their requests."""
        found = [choice for texts in self._under_way for choice in texts.running]
        return sorted(found, key=lambda choice: choice.task)

    def ready(self) -> Ready:
        """Return the engine's `Ready` message; with `OnDemand`, the expected one until it is ready.

        Raises:
            HttpError: The model is loading or could not be loaded, or the server is shutting down.
        """
        if self._failure is not None:
            raise self._failure
        if self.draining:
            raise HttpError(
                503, "the server is about to end", remedy="use another server, or try again later",
                code="shutting_down", headers={"Retry-After": "30"},
            )  # fmt: skip
        if (failure := self.engine.failure) is not None:
            raise HttpError(
                503, f"the engine is lost: {failure.what}", remedy=failure.remedy,
                code="engine_lost", headers={"Retry-After": "30"},
            )  # fmt: skip
        ready = self.engine.ready
        if ready is None and self._on_demand is not None:
            ready = self._on_demand.expected
        if ready is None:
            raise HttpError(
                503, "the model is loading", remedy="ask again in a moment",
                code="loading", headers={"Retry-After": "5"},
            )  # fmt: skip
        return ready

    async def load(self) -> None:
        """Wait until the model is loaded; start its engine if needed.

        Raises:
            HttpError: See `ready`.
        """
        self.ready()
        if self._on_demand is not None:
            self._on_demand.start()
        while self.engine.ready is None:
            await asyncio.sleep(0.02)
            self.ready()

    def fail(self, error: HttpError) -> None:
        """End all sequences and refuse new ones with *error*: the model cannot be loaded."""
        self._failure = error
        for texts in self._under_way:
            texts.fail(error)

    def require_capacity(self, choices: int) -> None:
        """Check that the queue has space for *choices* more sequences.

        Raises:
            HttpError: The queue is full.
        """
        maximum = self.ready().sequences * (1 + limits.QUEUE)
        if self.settings.embeddings:
            maximum = limits.EMBEDDINGS
        if self.active + choices > maximum and self.active:
            self.counts.refused += 1
            raise HttpError(
                429, f"the queue is full: {self.active} sequences run or wait, at most {maximum}",
                remedy="ask again later", code="queue_full",
                headers={"Retry-After": str(self.retry_after())},
            )  # fmt: skip

    def retry_after(self) -> int:
        """Return the expected time in seconds until a sequence ends, from the mean duration."""
        mean = self.counts.seconds / self.counts.ended if self.counts.ended else 1.0
        return max(1, min(LONGEST_RETRY, round(mean / max(1, self.active))))

    # --- Requests -------------------------------------------------------------------------------

    def begin(self, prompts: Sequence[Sequence[int]], wanted: SamplingParams) -> Texts:
        """Begin the completions of *prompts*, in the order of *prompts*.

        Raises:
            HttpError: The queue is full, or *wanted* is invalid.
        """
        if wanted.embed != self.settings.embeddings:
            embeds = self.settings.embeddings
            raise wrong(
                "this server embeds texts only" if embeds
                else "this server embeds no texts",
                f"ask one that was started {'without' if embeds else 'with'} --embeddings",
                code="unsupported",
            )  # fmt: skip
        seconds = wanted.pairs or [0] * len(prompts)
        submits = [
            submit
            for prompt, second in zip(prompts, seconds, strict=True)
            for submit in self._submits(prompt, second, wanted)
        ]
        self.require_capacity(len(submits))
        if self._on_demand is not None:
            self._on_demand.start()
        choices = [
            Choice(self.model.tokenizer, i, wanted.stops, wanted.shown) for i in range(len(submits))
        ]
        loop = asyncio.get_running_loop()
        began = loop.time()
        late = HttpError(
            504, f"the request took more than {self.settings.deadline:g} s",
            remedy="ask for fewer tokens, or start the server with a larger --timeout",
            code="deadline_exceeded",
        )  # fmt: skip
        timer: asyncio.TimerHandle | None = None

        line = request_log.current()

        def done(texts: Texts) -> None:
            if timer is not None:
                timer.cancel()
            if line is not None:
                line.add(texts.figures())
            self._ended(texts, loop.time() - began)

        texts = Texts(self.engine, submits, choices, sum(map(len, prompts)), done,
            min(PATIENCE, self.settings.ping), wanted.predict_ms,
        )  # fmt: skip
        timer = loop.call_later(self.settings.deadline, texts.give_up, late)
        self._under_way.add(texts)
        self.counts.requests += 1
        return texts

    def _submits(self, prompt: Sequence[int], second: int, wanted: SamplingParams) -> list[Submit]:
        """Return the engine's `Submit` messages for the choices of *prompt*."""
        n_ctx = self.ready().n_ctx
        if not prompt:
            raise wrong("the prompt is empty", "send at least one token of text", "prompt")
        if len(prompt) >= n_ctx + wanted.embed:  # a completion needs space for one more token
            error = wrong(
                # Clients search for these phrases, of Anthropic, llama.cpp and OpenAI.
                f"prompt is too long: {len(prompt)} tokens > {n_ctx} maximum. It exceeds the "
                f"available context size. This model's maximum context length is {n_ctx} tokens",
                "send less, or start the server with a larger -c",
                "messages", "context_length_exceeded",
            )  # fmt: skip
            error.counts = {"n_prompt_tokens": len(prompt), "n_ctx": n_ctx}
            raise error
        scales = self._scales(wanted.scales)
        sampling = {**self.settings.sampling, **wanted.sampling}
        if wanted.biased_texts:
            sampling["logit_bias"] = self._biases(sampling.get("logit_bias"), wanted.biased_texts)
        self._check(sampling, wanted.stop_ids)
        seed = sampling.get("seed")
        submits = []
        for i in range(wanted.choices):
            drawn = secrets.randbelow(DRAWN_SEEDS) if seed is None else (seed + i) % SEEDS
            submits.append(Submit(
                0, list(prompt), len(prompt), {**sampling, "seed": drawn},
                self.settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens,
                stop_ids=wanted.stop_ids, ignore_eos=wanted.ignore_eos,
                min_tokens=wanted.min_tokens, top_logprobs=wanted.top_logprobs, salt=wanted.salt,
                grammar=wanted.grammar, response_format=wanted.response_format,
                embed=wanted.embed, lark=wanted.lark, prompt_logprobs=wanted.prompt_logprobs,
                normalize=wanted.normalize, rank=bool(wanted.pairs), second=second, scales=scales,
            ))  # fmt: skip
        return submits

    def set_scales(self, scales: Mapping[int, float]) -> None:
        """Set the scales of adapters for requests without ``lora``; others become 0.

        Raises:
            HttpError: An adapter does not exist.
        """
        found = self._scales(scales) or []
        names = [name for name, _ in self.settings.lora]
        self.settings.lora = list(zip(names, found, strict=True))

    def _scales(self, scales: Mapping[int, float] | None) -> list[float] | None:
        """Return the scale of each adapter of a request; None without adapters.

        Raises:
            HttpError: An adapter does not exist.
        """
        count = len(self.settings.lora)
        if scales is None:
            return [scale for _, scale in self.settings.lora] or None
        unknown = [number for number in scales if number >= count]
        if unknown:
            raise wrong(f"lora names the adapter {unknown[0]}, and the server has {count}",
                        "use an id of /lora-adapters", "lora")  # fmt: skip
        return [scales.get(number, 0.0) for number in range(count)] or None

    def _biases(
        self, by_id: Mapping[int, float] | None, by_text: Mapping[str, float]
    ) -> dict[int, float]:
        """Return the biases by token id; the biases of a token in several texts are added."""
        found = dict(by_id or {})
        for text, bias in by_text.items():
            for token in set(self.model.encode(text, add_bos=False, special=False)):
                found[token] = found.get(token, 0.0) + bias
        return found

    def _check(self, sampling: Mapping[str, Any], stop_ids: Sequence[int]) -> None:
        try:
            checked = Sampling(**sampling)
        except NpurtError as error:
            raise of(error) from error
        n_vocab = self.model.tokenizer.n_vocab
        for name, ids in (("logit_bias", checked.logit_bias), ("stop", stop_ids)):
            if any(i >= n_vocab for i in ids):
                raise wrong(
                    f"{name} names ids beyond the vocabulary of {n_vocab}",
                    "use ids of /tokenize", name,
                )  # fmt: skip

    def _ended(self, texts: Texts, seconds: float) -> None:
        self._under_way.discard(texts)
        counts = self.counts
        counts.ended += len(texts.choices)
        counts.seconds += seconds * len(texts.choices)
        counts.prompt_tokens += texts.prompt_tokens
        counts.cached_tokens += texts.cached_tokens
        counts.completion_tokens += texts.completion_tokens
        for choice in texts.choices:
            counts.longest = max(counts.longest, choice.prompt_tokens + choice.count)
            counts.queue_seconds += choice.timing.queue
            counts.prompt_seconds += choice.timing.prompt
            counts.generation_seconds += choice.timing.generation
            counts.timed_tokens += max(0, choice.count - 1)

    # --- The end --------------------------------------------------------------------------------

    async def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Refuse new requests, and wait for the active ones; end these after *seconds*."""
        self.draining = True
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._under_way and loop.time() < until:
            await asyncio.sleep(0.02)
        for texts in self._under_way:
            texts.fail(HttpError(
                503, "the server ends", remedy="use another server, or try again later",
                code="shutting_down",
            ))  # fmt: skip
        until = loop.time() + LAST_SECONDS
        # Let the streams send the error; do not wait longer for clients that do not read.
        while self._under_way and loop.time() < until:
            await asyncio.sleep(0.02)
