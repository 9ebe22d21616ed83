"""A backend that opens the model again when a sequence wants other scales of LoRA adapters.

The scales are part of an opened model (docs/decisions/028).  So sequences with the same scales run
together; sequences with other scales wait until these have ended, and until the model is open with
their scales.  Sequences begin in the order of their requests.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from npurt.serve.engine.protocol import SequenceEvent, Submit
from npurt.serve.engine.worker import Emit, EngineBackend, failure

Scales = tuple[float, ...]
Opener = Callable[[Scales, Emit], EngineBackend]  # opens the model with scales


class Adapted:
    """A backend whose model is open with the scales of its running sequences; see `EngineBackend`.

    Args:
        opener: Opens the model.
        scales: The scales at the beginning, one for each adapter.
        emit: See `EngineBackend`.
    """

    def __init__(self, opener: Opener, scales: Scales, emit: Emit) -> None:
        self._opener = opener
        self._usual = self._scales = scales
        self._emit = emit
        self._lock = threading.RLock()
        self._active: set[int] = set()  # sequences of the open model
        self._unsent: set[int] = set()  # those of them that are not submitted to it yet
        self._waiting: deque[Submit] = deque()
        self._opening: threading.Thread | None = None
        self._closing = False
        self._lost: Exception | None = None  # why no model is open
        self._backend = opener(scales, self._pass_on)
        self.n_ctx, self.sequences = self._backend.n_ctx, self._backend.sequences
        self.device = self._backend.device
        self.identity = self._backend.identity  # of the model with the scales at the beginning

    def submit(self, submit: Submit) -> None:
        """Submit a sequence to the open model, or let it wait for a model with its scales.

        Raises:
            NpurtError: The sequence can never run.
        """
        with self._lock:
            if self._waiting or self._opening or self._wanted(submit) != self._scales:
                self._waiting.append(submit)
                self._advance()
                return
            self._active.add(submit.id)
        try:
            self._backend.submit(submit)
        except Exception:
            self._end([submit.id])
            raise

    def cancel(self, sequence: int) -> None:
        """End a sequence; do nothing if it has ended."""
        with self._lock:
            self._waiting = deque(each for each in self._waiting if each.id != sequence)
            if sequence in self._unsent:
                self._unsent.remove(sequence)
                self._end([sequence])
            elif sequence in self._active:
                self._backend.cancel(sequence)

    def _wanted(self, submit: Submit) -> Scales:
        return self._usual if submit.scales is None else tuple(submit.scales)

    def _pass_on(self, events: Sequence[SequenceEvent]) -> None:
        self._emit(events)
        ended = [event.id for event in events if event.finish]
        if ended:
            self._end(ended)

    def _end(self, sequences: Sequence[int]) -> None:
        with self._lock:
            self._active.difference_update(sequences)
            self._advance()

    def _advance(self) -> None:
        """Begin to open the model for the first waiting sequence, if no sequence is active."""
        if self._waiting and not self._active and not self._opening and not self._closing:
            self._opening = threading.Thread(target=self._reopen, daemon=True)
            self._opening.start()

    def _reopen(self) -> None:
        """Open the model with the scales of the first waiting sequence, and submit its sequences.

        A thread of its own does this: the engine's thread cannot close itself, and the main thread
        answers the front in the meantime.
        """
        with self._lock:
            wanted = self._wanted(self._waiting[0]) if self._waiting else self._scales
        error: Exception | None = None
        if wanted != self._scales:
            sys.stderr.write(f"opening the model with the scales {list(wanted)} of adapters\n")
            self._backend.close()
            try:
                self._backend = self._opener(wanted, self._pass_on)
                self._scales = wanted
            except Exception as raised:  # noqa: BLE001  its sequences get the error
                error = raised
                try:
                    self._backend = self._opener(self._scales, self._pass_on)
                except Exception as lost:  # noqa: BLE001  `stats` raises it, and the front restarts
                    self._lost = lost
                    return
        with self._lock:
            ready = []
            while self._waiting and self._wanted(self._waiting[0]) == wanted:
                ready.append(self._waiting.popleft())
            if error is None:
                self._unsent = {submit.id for submit in ready}
                self._active |= self._unsent
            self._opening = None
            self._advance()
        for submit in ready:
            try:
                if error is not None:
                    raise error
                with self._lock:
                    if submit.id not in self._unsent:  # it was cancelled
                        continue
                    self._unsent.remove(submit.id)
                self._backend.submit(submit)
            except Exception as raised:  # noqa: BLE001  other sequences continue
                self._pass_on([failure(submit.id, raised)])

    def stats(self) -> Mapping[str, float]:
        """Return counts by name; those of a model that is being opened are unknown.

        Raises:
            Exception: The model could not be opened again.
        """
        if self._lost is not None:
            raise self._lost
        with self._lock:
            waiting = float(len(self._waiting))
            if self._opening:
                return {"waiting": waiting}
        found = dict(self._backend.stats())
        return found | {"waiting": found.get("waiting", 0.0) + waiting}

    def close(self) -> None:
        """End all sequences, and release the model."""
        with self._lock:
            self._closing = True
            self._waiting.clear()
            opening = self._opening
        if opening:
            opening.join()
        if self._lost is None:
            self._backend.close()
