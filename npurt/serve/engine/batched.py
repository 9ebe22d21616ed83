"""A backend that runs many sequences at a time, with `npurt.Engine`."""

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from npurt.errors import UnsupportedOp
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.engine.engine import USUAL_SEQUENCES
from npurt.llm.engine.engine import Engine as Batches
from npurt.llm.engine.events import Event as Given
from npurt.llm.engine.request import Request
from npurt.serve.engine.counts import device_counts
from npurt.serve.engine.identity import identity
from npurt.serve.engine.protocol import SequenceEvent, Submit
from npurt.serve.engine.worker import Emit, failure


class Batched:
    """A loaded model, and the sequences that it runs; see `EngineBackend`."""

    def __init__(self, path: str, options: Mapping[str, Any], emit: Emit) -> None:
        """Open the model of the file *path*; *options* are those of `npurt.Engine`."""
        self._emit = emit
        self._lock = threading.Lock()  # guards the three dictionaries below
        self._ids: dict[int, int] = {}  # the front's sequence ids by the engine's request ids
        self._requests: dict[int, Request] = {}  # requests by the front's sequence ids
        # Events that arrived before `Engine.submit` returned, by the engine's request ids.
        self._early: dict[int, list[Given]] = {}
        self._engine = Batches(path, on_step=self._pass_on, progress=False, **options)
        sys.stderr.write(f"{self._engine.sizes}\n")
        stats = self._engine.stats()
        self.sequences = int(options.get("max_sequences") or USUAL_SEQUENCES)
        positions = stats.page * stats.pages
        self.n_ctx = min(self._engine.llm.n_ctx, positions or self._engine.llm.n_ctx)
        self.device = self._engine.llm.device.caps.name
        self.identity: Mapping[str, str] = identity(self._engine.llm)

    def submit(self, submit: Submit) -> None:
        """Submit a sequence to the engine.

        Raises:
            NpurtError: The sequence can never run.
        """
        if submit.embed:
            raise UnsupportedOp("this engine embeds no texts", remedy="start it with --embeddings")
        request = self._engine.submit(
            submit.tokens,
            submit.sampling,
            prompt_tokens=submit.prompt,
            salt=submit.salt,
            prompt_logprobs=submit.prompt_logprobs,
            detokenize=False,  # the front decodes the tokens
            max_tokens=submit.max_tokens,
            stop=list(submit.stop_ids),
            ignore_eos=submit.ignore_eos,
            min_tokens=submit.min_tokens,
            logprobs=submit.top_logprobs,
            grammar=Grammar.from_lark(submit.lark) if submit.lark else submit.grammar,
            response_format=submit.response_format,
        )
        with self._lock:
            self._ids[request.id] = submit.id
            self._requests[submit.id] = request
            early = [self._event(event) for event in self._early.pop(request.id, ())]
        if early:
            self._emit(early)

    def cancel(self, sequence: int) -> None:
        """Cancel a sequence; do nothing if it has ended."""
        with self._lock:
            request = self._requests.get(sequence)
        if request is not None:
            request.cancel()

    def _pass_on(self, events: Sequence[Given]) -> None:
        """Send the events of a step; called by the engine's thread."""
        with self._lock:
            for event in events:
                if event.id not in self._ids:
                    self._early.setdefault(event.id, []).append(event)
            sent = [self._event(event) for event in events if event.id in self._ids]
        if sent:
            self._emit(sent)

    def _event(self, event: Given) -> SequenceEvent:
        sequence = self._ids[event.id]
        if event.finish:
            del self._ids[event.id], self._requests[sequence]
        if event.finish == "error" and event.error is not None:
            return failure(sequence, event.error)
        return SequenceEvent(
            sequence,
            tokens=list(event.tokens),
            finish=event.finish or None,
            logprobs=[(found.logprob, found.top) for found in event.logprobs],
            read=event.read,
            cached=event.cached,
            prompt_logprobs=[(found.logprob, found.top) for found in event.prompt_logprobs],
            seconds=round(event.seconds, 6),
        )

    def stats(self) -> Mapping[str, float]:
        """Return counts by name.

        Raises:
            SettingError: The thread of the engine has ended.
        """
        stats = self._engine.stats()
        return {
            **{name: float(value) for name, value in asdict(stats.counts).items()},
            **{
                name: float(getattr(stats, name))
                for name in ("running", "waiting", "pages", "used", "prefixes")
            },
            **device_counts(self._engine.llm),
        }

    def close(self) -> None:
        """End all sequences, and release the model."""
        self._engine.close()
