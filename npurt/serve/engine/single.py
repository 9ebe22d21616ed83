"""A backend that runs one sequence at a time, with `npurt.Llama`; the others wait in order."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npurt.errors import ContextFull, NpurtError
from npurt.llm.decode.generate import Generation
from npurt.llm.decode.model import Llama
from npurt.llm.decode.options import Request
from npurt.llm.decode.sampler import Sampler
from npurt.serve.engine.protocol import Event, Logprob, Submit
from npurt.serve.engine.worker import failure


class Single:
    """A loaded model, and the sequences that wait for it."""

    sequences = 1

    def __init__(self, llm: Llama) -> None:
        self._llm = llm
        self._waiting: deque[Submit] = deque()
        self._running: _Running | None = None
        self._counts = {"prompt_tokens": 0.0, "cached_tokens": 0.0, "steps": 0.0}
        self.n_ctx = llm.n_ctx
        self.device = llm.device.caps.name

    @classmethod
    def open(cls, path: str, options: Mapping[str, Any]) -> "Single":
        """Open the model of the file *path*; *options* are those of `Llama`."""
        return cls(Llama(path, progress=False, **options))

    def submit(self, submit: Submit) -> None:
        """Take a sequence; see `Backend`.

        Raises:
            NpurtError: It can never run.
        """
        self._llm.model.valid(submit.tokens)
        Request.of(_options(submit), None)
        if not 0 < submit.prompt <= self.n_ctx:
            raise ContextFull(
                f"{submit.prompt} tokens do not fit a context of {self.n_ctx}",
                remedy="send a shorter prompt, or start with a larger -c",
            )
        self._waiting.append(submit)

    def cancel(self, sequence: int) -> None:
        """Forget a sequence."""
        self._waiting = deque(each for each in self._waiting if each.id != sequence)
        if self._running and self._running.submit.id == sequence:
            self._running = None

    @property
    def busy(self) -> bool:
        """Whether there is a sequence."""
        return bool(self._running or self._waiting)

    def step(self) -> Sequence[Event]:
        """Read a part of a prompt, or generate a token."""
        self._counts["steps"] += 1
        if self._running is None:
            self._running = _Running(self._llm, self._waiting.popleft(), self._counts)
        try:
            event = self._running.step()
        except NpurtError as error:
            event = failure(self._running.submit.id, error)
        if event.finish:
            self._running = None
        return [event]

    def stats(self) -> Mapping[str, float]:
        """Return counts by name."""
        report = self._llm.report()
        return self._counts | {
            "running": float(self._running is not None),
            "waiting": float(len(self._waiting)),
            "fallbacks": float(len(report.fallbacks())),
            "verified": float(sum(row.verified for row in report.rows)),
            "wrong": float(sum(row.failed for row in report.rows)),
        }

    def close(self) -> None:
        """Release the model."""
        self._llm.close()


class _Running:
    """The sequence that runs: its prompt is read in batches, then tokens are generated."""

    def __init__(self, llm: Llama, submit: Submit, counts: dict[str, float]) -> None:
        self.submit = submit
        self._llm = llm
        self._tokens = list(submit.tokens)
        self._counts = counts
        self._read: int | None = None  # tokens of the prompt that are in the context
        self._cached = 0
        self._generated: Iterator[int] | None = None

    def step(self) -> Event:
        """Do the next piece of work."""
        if len(self._tokens) > self._llm.n_ctx:  # it was full when another engine was lost
            return self._event(finish="context")
        if self._read is None:
            self._read = self._cached = self._keep()
            self._counts["cached_tokens"] += self._cached
        rest = self._tokens[self._read : -1]  # the last one is read with the first new token
        if rest:
            part = rest[: self._llm.n_batch]
            self._llm.read(part)
            self._read += len(part)
            return self._event()
        return self._generate()

    def _keep(self) -> int:
        """Keep what the context shares with the prompt; return how many tokens that is."""
        shared = 0
        for have, want in zip(self._llm.history, self._tokens[:-1], strict=False):
            if have != want:
                break
            shared += 1
        state = self._llm.state
        shared = state.reach(min(shared, state.own))
        self._llm.rewind(shared)
        self._counts["prompt_tokens"] += len(self._tokens) - shared
        return shared

    def _generate(self) -> Event:
        submit = self.submit
        if self._generated is None:
            done = len(submit.tokens) - submit.prompt
            request = Request.of(_options(submit), None)
            generation = Generation(
                self._llm.generator,
                self._tokens,
                request.sampler(self._llm.tokenizer, submit.prompt, Sampler),
                (),
                None if submit.max_tokens is None else max(0, submit.max_tokens - done),
                stop_ids=request.stop_ids,
                top_logprobs=submit.top_logprobs,
            )
            self._read = len(self._tokens)
            self._generated = generation.tokens()
        token = next(self._generated, None)
        if token is None:
            return self._event(finish=self._llm.timing.finish)
        return self._event(token)

    def _event(self, token: int | None = None, finish: str | None = None) -> Event:
        logprobs: list[Logprob] = []
        if token is not None and self.submit.top_logprobs is not None:
            found = self._llm.timing.logprobs[-1]
            logprobs = [(found.logprob, found.top)]
        return Event(
            self.submit.id,
            tokens=[] if token is None else [token],
            finish=finish,
            logprobs=logprobs,
            read=min(self._read or 0, self.submit.prompt),
            cached=min(self._cached, self.submit.prompt),
        )


def _options(submit: Submit) -> dict[str, Any]:
    return {
        **submit.sampling,
        "stop": list(submit.stop_ids),
        "ignore_eos": submit.ignore_eos,
        "min_tokens": submit.min_tokens,
    }
