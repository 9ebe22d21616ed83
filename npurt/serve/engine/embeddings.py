"""A backend that computes embeddings, one request after another."""

import base64
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from npurt.base.threads import start
from npurt.device.device import F32
from npurt.errors import UnsupportedOp
from npurt.llm.decode.llama import Llama
from npurt.serve.engine.counts import device_counts
from npurt.serve.engine.identity import identity
from npurt.serve.engine.protocol import SequenceEvent, Submit
from npurt.serve.engine.worker import Emit, failure


class Embeddings:
    """A loaded model, and its queue of embedding requests; see `EngineBackend`."""

    sequences = 1

    def __init__(self, path: str, options: Mapping[str, Any], emit: Emit) -> None:
        """Open the model of the file *path*; *options* are those of `npurt.Llama`."""
        self._llm = Llama(path, progress=False, **options)
        self._emit = emit
        self._changed = threading.Condition()
        self._waiting: deque[Submit] = deque()
        self._closing = False
        self._done = 0
        self.n_ctx = self._llm.n_ctx
        self.device = self._llm.device.caps.name
        self.identity: Mapping[str, str] = identity(self._llm)
        self._thread = threading.Thread(target=self._run, daemon=True)
        start(self._thread)

    def submit(self, submit: Submit) -> None:
        """Append a request to the queue.

        Raises:
            UnsupportedOp: The request is for a completion.
        """
        if not submit.embed:
            raise UnsupportedOp("this engine embeds texts only", remedy="start another server")
        with self._changed:
            self._waiting.append(submit)
            self._changed.notify()

    def cancel(self, sequence: int) -> None:
        """Remove a request from the queue."""
        with self._changed:
            self._waiting = deque(each for each in self._waiting if each.id != sequence)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                submit = self._waiting.popleft()
            try:
                values = self._values(submit)
            except Exception as error:  # noqa: BLE001  other requests continue
                self._emit([failure(submit.id, error)])
                continue
            self._done += 1
            vector = base64.b64encode(values.astype("<f4").tobytes()).decode()
            self._emit([SequenceEvent(submit.id, finish="end", read=submit.prompt, vector=vector)])

    def _values(self, submit: Submit) -> F32:
        """Return the embedding, or the score, of the tokens of *submit*."""
        tokens = list(submit.tokens)
        if not submit.rank:
            return self._llm.embedder.each([tokens], submit.normalize)[0].values
        second = submit.second
        segments = [0] * second + [1] * (len(tokens) - second) if second else None
        return self._llm.embedder.scores([(tokens, segments)])

    def stats(self) -> Mapping[str, float]:
        """Return counts by name."""
        return {
            "waiting": float(len(self._waiting)),
            "steps": float(self._done),
            **device_counts(self._llm),
        }

    def close(self) -> None:
        """Finish the current request, and release the model."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._llm.close()
