"""Choose the tokens that a step evaluates: decode tokens, draft tokens, then prompt tokens.

A step evaluates the last token of every decoding sequence.  Draft tokens are added if they save
time.  Then tokens of the oldest prompt and of short prompts are added.  Prompt tokens may
extend a step to at most `SLOWDOWN` times its time without them, by the times measured so far.  If
no sequence is decoding, prompt tokens fill the whole run.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from npurt.errors import ContextFull, NpurtError, OutOfPages
from npurt.llm.decode.step import DecodeStep
from npurt.llm.engine.admission import Admission
from npurt.llm.engine.controller import StepCost
from npurt.llm.engine.costs import RowCosts
from npurt.llm.engine.events import Counts, Event, Stats
from npurt.llm.engine.pages import Pages
from npurt.llm.engine.prefixes import Prefixes
from npurt.llm.engine.reuse import Reuse
from npurt.llm.engine.scores import Scores
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.context import Piece
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.spec.assistant import shared
from npurt.llm.spec.opening import Drafts

SLOWDOWN = 2.5  # largest slowdown of a step by prompt tokens
SCORED_ROWS = 16  # prompt tokens with logits in a step; the logits of one may take 600 kB
SHORT = 4  # a short prompt has at most 1 / SHORT as many pending tokens as the oldest

Decoded = dict[Sequence, list[int]]  # decoding sequences with their draft tokens
Prompts = list[tuple[Sequence, Piece]]  # sequences with the parts of prompts to evaluate


class Scheduler:
    """Runs the steps of an engine.  One thread at a time may use it.

    Args:
        model: The model.  The scheduler must be its only user.
        sequences: The largest number of sequences evaluated together.
        prefixes: The largest number of cached prefixes.
        drafts: Creates a speculator for each sequence; None decodes without drafts.

    Attributes:
        longest: The largest number of positions of a sequence.
        counts: See `Counts`.
        admission: The running and the waiting sequences.
        prefixes: The prefix cache.
    """

    def __init__(
        self, model: LoadedModel, *, sequences: int, prefixes: int, drafts: Drafts | None = None
    ) -> None:
        self._pages = Pages(model)
        capacity = self._pages.capacity()
        self.longest = min(model.n_ctx, capacity.page * capacity.total if capacity else model.n_ctx)
        self.counts = Counts()
        self._running: list[Sequence] = []  # by priority and arrival
        self.prefixes = Prefixes(prefixes, recurrent=model.executor.recurrent)
        self._scores = Scores() if prefixes else Scores(0)
        self._reuse = Reuse(model, self.prefixes, self._running, self.counts)
        self.admission = Admission(self._running, sequences, self._pages, self._reuse, self.counts)
        self._model = model
        self._rows = model.decoder.rows
        self._drafts = drafts
        self._costs = RowCosts(self._rows)
        self._step_cost = StepCost(self._costs)
        self._arrivals = 0
        self._losses = model.executor.losses
        self._step = DecodeStep(model.config.n_vocab)

    # --- Admission and removal of sequences ------------------------------------------------------

    def require_fit(self, sequence: Sequence) -> None:
        """Raise an error if *sequence* can never be evaluated.

        Raises:
            ContextFull: The prompt is too long.
            LayoutError: A token is not in the vocabulary.
        """
        self._model.valid(sequence.history)
        if sequence.prompt > self.longest:
            raise ContextFull(
                f"a prompt of {sequence.prompt} tokens does not fit {self.longest} positions",
                remedy="shorten the prompt, or open the model with a larger n_ctx (-c) or kv_bytes",
            )

    def submit(self, sequence: Sequence) -> Event | None:
        """Add a sequence that passed `require_fit`; return its last event if it ends at once."""
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self.counts.prompt += sequence.prompt
        sequence.recall(self._scores)
        self.admission.wait(sequence)
        if len(sequence.history) > self.longest:
            return self.cancel(sequence, "length" if sequence.left == 0 else "context")
        if sequence.left == 0 and not sequence.scoring:
            return self.cancel(sequence, "length")
        return None

    def cancel(self, sequence: Sequence, finish: str = "cancelled") -> Event | None:
        """End a sequence and release its pages; return None if it had ended already."""
        return None if sequence.finish else self._ended(sequence, sequence.end(finish))

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences that have not ended."""
        return [*self._running, *self.admission.waiting]

    def stats(self) -> Stats:
        """Return the present state of the engine."""
        capacity = self._pages.capacity()
        return Stats(
            running=len(self._running),
            waiting=len(self.admission.waiting),
            page=capacity.page if capacity else 0,
            pages=capacity.total if capacity else 0,
            used=capacity.total - capacity.free if capacity else 0,
            prefixes=len(self.prefixes),
            counts=replace(self.counts),
        )

    def close(self) -> list[Event]:
        """End all sequences, and release all pages."""
        events = [event for sequence in self.sequences if (event := self.cancel(sequence))]
        self.prefixes.clear()
        return events

    # --- A step ---------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one step; return the events of the sequences that it evaluated or ended."""
        now = time.monotonic()
        late = [sequence for sequence in self.sequences if sequence.late(now)]
        events = [event for sequence in late if (event := self.cancel(sequence, "deadline"))]
        if self._losses != self._model.executor.losses:
            self._begin_again()
        self._pages.claimed.clear()
        for sequence, error in self.admission.admit(self._drafts, self._step_cost):
            events.append(self._ended(sequence, sequence.end("error", error)))
        sequences = self._running[:1]
        try:
            drafts = self._decoded()
            prompts = self._read(len(drafts) + sum(map(len, drafts.values())), len(drafts))
            drafts = {sequence: draft for sequence, draft in drafts.items() if sequence.context}
            prompts = [(sequence, piece) for sequence, piece in prompts if sequence.context]
            sequences = [*drafts, *(sequence for sequence, _ in prompts)]
            if sequences and self._run(drafts, prompts):
                for event in self._results(
                    drafts, prompts
                ):  # these events are kept if a later sequence fails
                    events.append(event)
        except (NpurtError, MemoryError) as error:
            going_on = [sequence for sequence in sequences if not sequence.finish]
            events += [self._ended(sequence, sequence.end("error", error)) for sequence in going_on]
        return events

    def _run(self, drafts: Decoded, prompts: Prompts) -> bool:
        """Run the model; return False if the run failed, and the next step must repeat it."""
        self._model.require_open()
        step = self._step
        try:
            done = step.run(drafts.items(), [piece for _, piece in prompts])
        except OutOfPages:  # a shared page had to be copied, and no page was free
            for sequence in self._running:
                self._settle(sequence)
            self.admission.free_a_page()
            return False
        self.counts.seconds += step.seconds
        if not done:
            self._begin_again()
            return False
        self.counts.steps += 1
        self.counts.rows += step.rows
        self._costs.add(step.rows, step.seconds)
        return True

    def _begin_again(self) -> None:
        """Let all sequences be evaluated again after a device failed and lost their states."""
        self._losses = self._model.executor.losses
        self.counts.lost += 1
        self.prefixes.clear()
        for sequence in self._running:
            self._settle(sequence)

    def _settle(self, sequence: Sequence) -> None:
        if sequence.context:
            sequence.context.settle()

    # --- Choice of the tokens of a step ----------------------------------------------------------

    def _decoded(self) -> Decoded:
        """Return the decoding sequences with their draft tokens, for which pages are free."""
        sequences = [sequence for sequence in self._running if not sequence.prefilling]
        for sequence in sequences:
            self.admission.require_pages(sequence, 1)
        sequences = [sequence for sequence in sequences if sequence.context]
        drafts: Decoded = {sequence: [] for sequence in sequences}
        if not self._drafts:
            return drafts
        self._step_cost.begin(len(sequences))
        maximum = self._rows - any(
            sequence.prefilling for sequence in self._running
        )  # at least one row is left for prompts
        for sequence in sequences:
            available = min(self.longest - len(sequence.history), maximum - self._step_cost.rows)
            draft = sequence.draft(available)
            more = self._pages.growth(sequence, 1 + len(draft)) - self._pages.growth(sequence, 1)
            if draft and more <= self._pages.free():
                self._pages.claimed[sequence] += more
                drafts[sequence] = draft
                self._step_cost.add(len(draft))
        return drafts

    def _read(self, rows: int, sequences: int) -> Prompts:
        """Return the parts of prompts that a step evaluates.

        The step has *rows* rows of *sequences* decoding sequences already.

        Short prompts come first, but leave half of the rows to the oldest prompt.  The other
        prompts follow in order.
        """
        reading = [sequence for sequence in self._running if sequence.prefilling]
        if not reading:
            return []
        maximum = self._rows
        if sequences:
            maximum = self._costs.rows_within(SLOWDOWN * self._costs.seconds(rows), rows + 1)
        short, half = self._short(reading), rows + (maximum - rows) // 2
        order = short + [sequence for sequence in reading if sequence not in short]
        found: Prompts = []
        scored = 0
        for sequence in order:
            end = half if sequence in short else maximum
            if rows >= end or not sequence.context:
                continue
            if not sequence.context.n_tokens:
                if any(self._reuse.being_read(sequence, other, piece) for other, piece in found):
                    continue  # *sequence* forks the prefix in the next step
                self._reuse.begin(sequence, sequence.context)
            start = sequence.context.n_tokens
            mark = next((mark for mark in sequence.marks if mark > start), len(sequence.history))
            count = min(mark - start, end - rows)
            if sequence.scoring:
                count = min(count, SCORED_ROWS - scored)
            if not count or not self.admission.require_pages(sequence, count):
                continue
            rows += count
            ids = sequence.history[start : start + count]
            wanted = count if sequence.scoring else int(start + count == len(sequence.history))
            scored += count if sequence.scoring else 0
            piece = Piece(sequence.context, ids, wanted)
            found.append((sequence, piece))
        return found

    def _short(self, reading: list[Sequence]) -> list[Sequence]:
        """Return the prompts that are short compared with the oldest one, the shortest first.

        Prompts that share unevaluated tokens with the oldest prompt are omitted.
        """
        left: dict[Sequence, int] = {}
        for sequence in reading[1:]:
            oldest = reading[0]
            same = shared(oldest.history, sequence.history) if oldest.salt == sequence.salt else 0
            if oldest.context and sequence.context and same <= oldest.context.n_tokens:
                known = sequence.context.n_tokens or self._reuse.beginning(sequence)[2]
                if SHORT * (len(sequence.history) - known) <= oldest.pending:
                    left[sequence] = len(sequence.history) - known
        return sorted(left, key=left.__getitem__)

    def _results(self, drafts: Decoded, prompts: Prompts) -> Iterator[Event]:
        """Sample tokens from the logits of the step; yield an event for each evaluated sequence."""
        step = self._step
        for sequence, draft in drafts.items():
            rows = step.take(1 + len(draft))
            event = sequence.sample(rows, draft, self.longest, step.seconds)
            self.counts.drafted += len(draft)
            self.counts.accepted += sequence.accepted
            yield self._advanced(sequence, event)
        for sequence, piece in prompts:
            if self._reuse.recurrent and piece.context.n_tokens in sequence.marks:
                self._reuse.keep_copy(sequence, piece.context)
            rows = step.take(piece.wanted)
            if sequence.scoring:
                sequence.score(rows, piece.context.n_tokens - len(rows), self._scores)
            if piece.context.n_tokens < len(sequence.history):
                yield sequence.progress()
                continue
            event = sequence.sample(rows[-1:], [], self.longest)
            yield self._advanced(sequence, event)

    def _advanced(self, sequence: Sequence, event: Event) -> Event:
        """Count the new tokens in *event*; remove the sequence if it has ended."""
        self.counts.generated += len(event.tokens)
        return self._ended(sequence, event) if sequence.finish else event

    def _ended(self, sequence: Sequence, event: Event) -> Event:
        """Remove a sequence that has ended, and add its tokens to the prefix cache."""
        self.counts.finished += 1
        if sequence in self.admission.waiting:
            self.admission.waiting.remove(sequence)
            return event
        self._running.remove(sequence)
        if context := sequence.leave():
            context.settle()
            self.prefixes.add(context, sequence.salt, prompt=sequence.prompt)
        return event
