"""Which tokens of which texts are evaluated in a step.

A step has one row of every text that goes on, then draft tokens that are worth it, then tokens of
the oldest prompts, and of short ones beside them.  The last are so many that the step takes no
longer than `SLOWDOWN` times a step without them, by the times measured so far; where no text goes
on, as many as a run can have.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npurt.device import F32
from npurt.errors import ContextFull, NpurtError, OutOfPages
from npurt.llm.batch.admission import Admission
from npurt.llm.batch.controller import StepCost
from npurt.llm.batch.costs import RowCosts
from npurt.llm.batch.events import Counts, Event, Stats
from npurt.llm.batch.pages import Pages
from npurt.llm.batch.prefixes import Prefixes
from npurt.llm.batch.reuse import Reuse
from npurt.llm.batch.sequence import Sequence
from npurt.llm.session.context import Piece, run_together
from npurt.llm.session.model import Model
from npurt.llm.spec.assistant import shared
from npurt.llm.spec.opening import Drafts

SLOWDOWN = 2.5  # the most that prompts may slow a step down
SCORED_ROWS = 16  # of prompts whose logits are wanted, in a step; a row of them may have 600 kB
SHORT = 4  # a prompt is short if it has this part left of what the oldest one has, or less

Decoded = dict[Sequence, list[int]]  # texts that go on, with their draft tokens
Prompts = list[tuple[Sequence, Piece]]  # texts, and the part of each that is read


class Scheduler:
    """The texts of a model.  One thread at a time.

    Args:
        model: It is used by nobody else.
        sequences: The most texts that are evaluated at a time.
        prefixes: The most texts that are kept for requests that begin with the same tokens.
        drafts: What drafts tokens; None: nothing.

    Attributes:
        longest: The most positions of a text.
        counts: See `Counts`.
        admission: The texts that run and wait.
        prefixes: The texts that are kept.
    """

    def __init__(
        self, model: Model, *, sequences: int, prefixes: int, drafts: Drafts | None = None
    ) -> None:
        self._pages = Pages(model)
        room = self._pages.room()
        self.longest = min(model.n_ctx, room.page * room.total if room else model.n_ctx)
        self.counts = Counts()
        self._running: list[Sequence] = []  # in order
        self.prefixes = Prefixes(prefixes, recurrent=model.executor.recurrent)
        self._reuse = Reuse(model, self.prefixes, self._running, self.counts)
        self.admission = Admission(self._running, sequences, self._pages, self._reuse, self.counts)
        self._model = model
        self._rows = model.decoder.rows
        self._drafts = drafts
        self._costs = RowCosts(self._rows)
        self._step_cost = StepCost(self._costs)
        self._arrivals = 0
        self._seconds = 0.0  # of the latest run
        self._losses = model.executor.losses
        self._out: F32 = np.empty((0, model.config.n_vocab), np.float32)

    # --- Texts come and go ----------------------------------------------------------------------

    def require_fit(self, text: Sequence) -> None:
        """Refuse a text that can never be evaluated.

        Raises:
            ContextFull: Its prompt is too long.
            LayoutError: A token is not in the vocabulary.
        """
        self._model.valid(text.history)
        if text.prompt > self.longest:
            raise ContextFull(
                f"a prompt of {text.prompt} tokens does not fit {self.longest} positions",
                remedy="shorten the prompt, or open the model with a larger n_ctx (-c) or kv_bytes",
            )

    def submit(self, text: Sequence) -> Event | None:
        """Take a text, for which `require_fit` has passed; return its end if that is all of it."""
        text.arrival = self._arrivals
        self._arrivals += 1
        self.counts.prompt += text.prompt
        self.admission.wait(text)
        if len(text.history) > self.longest:
            return self.cancel(text, "length" if text.left == 0 else "context")
        if text.left == 0 and not text.scoring:
            return self.cancel(text, "length")
        return None

    def cancel(self, text: Sequence, finish: str = "cancelled") -> Event | None:
        """End a text, and free its pages; return None if it has ended already."""
        return None if text.finish else self._ended(text, text.end(finish))

    @property
    def texts(self) -> list[Sequence]:
        """All texts that have not ended."""
        return [*self._running, *self.admission.waiting]

    def stats(self) -> Stats:
        """Return the present state."""
        room = self._pages.room()
        return Stats(
            running=len(self._running),
            waiting=len(self.admission.waiting),
            page=room.page if room else 0,
            pages=room.total if room else 0,
            used=room.total - room.free if room else 0,
            prefixes=len(self.prefixes),
            counts=replace(self.counts),
        )

    def close(self) -> list[Event]:
        """End all texts, and free all pages."""
        events = [event for text in self.texts if (event := self.cancel(text))]
        self.prefixes.clear()
        return events

    # --- A step ---------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Evaluate some tokens; return what that did for each text."""
        now = time.monotonic()
        late = [text for text in self.texts if text.late(now)]
        events = [event for text in late if (event := self.cancel(text, "deadline"))]
        if self._losses != self._model.executor.losses:
            self._begin_again()
        self._pages.claimed.clear()
        for text, error in self.admission.admit(self._drafts, self._step_cost):
            events.append(self._ended(text, text.end("error", error)))
        texts = self._running[:1]
        try:
            drafts = self._decoded()
            prompts = self._read(len(drafts) + sum(map(len, drafts.values())), len(drafts))
            drafts = {text: draft for text, draft in drafts.items() if text.context}
            prompts = [(text, piece) for text, piece in prompts if text.context]
            texts = [*drafts, *(text for text, _ in prompts)]
            if texts and self._run(drafts, prompts):
                for event in self._results(drafts, prompts):  # kept if a later one fails
                    events.append(event)
        except (NpurtError, MemoryError) as error:
            going_on = [text for text in texts if not text.finish]
            events += [self._ended(text, text.end("error", error)) for text in going_on]
        return events

    def _run(self, drafts: Decoded, prompts: Prompts) -> bool:
        """Run the model; return False when that did not succeed, and the next step tries again."""
        pieces = [Piece(text.context, [text.history[-1], *draft], 1 + len(draft))
                  for text, draft in drafts.items() if text.context]  # fmt: skip
        pieces += [piece for _, piece in prompts]
        rows = sum(len(piece.ids) for piece in pieces)
        wanted = sum(piece.wanted for piece in pieces)
        if len(self._out) < wanted:
            self._out = np.empty((wanted, self._out.shape[1]), np.float32)
        start = time.perf_counter()
        try:
            done = run_together(pieces, self._out)
        except OutOfPages:  # shared pages had to be copied
            for text in self._running:
                self._settle(text)
            self.admission.free_a_page()
            return False
        seconds = time.perf_counter() - start
        self._seconds = seconds
        self.counts.seconds += seconds
        if not done:
            self._begin_again()
            return False
        self.counts.steps += 1
        self.counts.rows += rows
        self._costs.add(rows, seconds)
        return True

    def _begin_again(self) -> None:
        """Have all texts evaluated again: a device failed, and their states are lost."""
        self._losses = self._model.executor.losses
        self.counts.lost += 1
        self.prefixes.clear()
        for text in self._running:
            self._settle(text)

    def _settle(self, text: Sequence) -> None:
        if text.context:
            text.context.settle()

    # --- What a step evaluates ------------------------------------------------------------------

    def _decoded(self) -> Decoded:
        """Return the texts that go on, with their draft tokens; their pages are free."""
        texts = [text for text in self._running if not text.reading]
        for text in texts:
            self.admission.require_pages(text, 1)
        texts = [text for text in texts if text.context]
        drafts: Decoded = {text: [] for text in texts}
        if not self._drafts:
            return drafts
        self._step_cost.begin(len(texts))
        most = self._rows - any(text.reading for text in self._running)  # a prompt gets one
        for text in texts:
            room = min(self.longest - len(text.history), most - self._step_cost.rows)
            draft = text.draft(room)
            more = self._pages.growth(text, 1 + len(draft)) - self._pages.growth(text, 1)
            if draft and more <= self._pages.free():
                self._pages.claimed[text] += more
                drafts[text] = draft
                self._step_cost.add(len(draft))
        return drafts

    def _read(self, rows: int, texts: int) -> Prompts:
        """Return parts of prompts for a step of *rows* rows of *texts* texts.

        Short prompts come first, but leave half of the rows to the oldest one; then they come in
        order.
        """
        reading = [text for text in self._running if text.reading]
        if not reading:
            return []
        most = self._rows
        if texts:
            most = self._costs.rows_within(SLOWDOWN * self._costs.seconds(rows), rows + 1)
        short, half = self._short(reading), rows + (most - rows) // 2
        order = short + [text for text in reading if text not in short]
        found: Prompts = []
        scored = 0
        for text in order:
            end = half if text in short else most
            if rows >= end or not text.context:
                continue
            if not text.context.n_tokens:
                if any(self._reuse.being_read(text, other, piece) for other, piece in found):
                    continue  # it begins with a fork of that in the next step
                self._reuse.begin(text, text.context)
            start = text.context.n_tokens
            mark = next((mark for mark in text.marks if mark > start), len(text.history))
            count = min(mark - start, end - rows)
            if text.scoring:
                count = min(count, SCORED_ROWS - scored)
            if not count or not self.admission.require_pages(text, count):
                continue
            rows += count
            ids = text.history[start : start + count]
            wanted = count if text.scoring else int(start + count == len(text.history))
            scored += count if text.scoring else 0
            piece = Piece(text.context, ids, wanted)
            found.append((text, piece))
        return found

    def _short(self, reading: list[Sequence]) -> list[Sequence]:
        """Return the prompts that are short beside the oldest one, the shortest first.

        Prompts that begin with tokens which the oldest one is about to evaluate are left out.
        """
        left: dict[Sequence, int] = {}
        for text in reading[1:]:
            oldest = reading[0]
            same = shared(oldest.history, text.history) if oldest.salt == text.salt else 0
            if oldest.context and text.context and same <= oldest.context.n_tokens:
                known = text.context.n_tokens or self._reuse.beginning(text)[2]
                if SHORT * (len(text.history) - known) <= oldest.pending:
                    left[text] = len(text.history) - known
        return sorted(left, key=left.__getitem__)

    def _results(self, drafts: Decoded, prompts: Prompts) -> Iterator[Event]:
        """Choose tokens by the logits of the step; yield the events."""
        row = 0
        for text, draft in drafts.items():
            rows = self._out[row : row + 1 + len(draft)]
            event = text.go_on(rows, draft, self.longest, self._seconds)
            row += 1 + len(draft)
            self.counts.drafted += len(draft)
            self.counts.accepted += text.right
            yield self._advanced(text, event)
        for text, piece in prompts:
            if self._reuse.recurrent and piece.context.n_tokens in text.marks:
                self._reuse.keep_copy(text, piece.context)
            rows = self._out[row : row + piece.wanted]
            row += piece.wanted
            if text.scoring:
                text.score(rows, piece.context.n_tokens - len(rows))
            if piece.context.n_tokens < len(text.history):
                yield text.progress()
                continue
            event = text.go_on(rows[-1:], [], self.longest)
            yield self._advanced(text, event)

    def _advanced(self, text: Sequence, event: Event) -> Event:
        """End a text if it has come to its end."""
        self.counts.generated += len(event.tokens)
        return self._ended(text, event) if text.finish else event

    def _ended(self, text: Sequence, event: Event) -> Event:
        """Remove a text that has ended; keep what was evaluated of it."""
        self.counts.finished += 1
        if text in self.admission.waiting:
            self.admission.waiting.remove(text)
            return event
        self._running.remove(text)
        if context := text.leave():
            context.settle()
            self.prefixes.add(context, text.salt, prompt=text.prompt)
        return event
