"""Admit waiting sequences in order when pages are free; preempt the youngest when no page is.

A sequence is admitted when the pages of its prompt and one more are free.  When a running sequence
needs a page and none is free, cached prefixes are evicted first.  Then the youngest sequence loses
its pages, and is evaluated again later.
"""

import bisect
from operator import attrgetter

from npurt.errors import NpurtError, OutOfPages
from npurt.llm.engine.controller import StepCost
from npurt.llm.engine.events import Counts
from npurt.llm.engine.pages import Pages
from npurt.llm.engine.prefixes import PAGE, Entry
from npurt.llm.engine.reuse import Reuse
from npurt.llm.engine.sequence import Sequence
from npurt.llm.spec.opening import Drafts

by_order = attrgetter("order")


class Admission:
    """The waiting and the running sequences.

    Args:
        running: The list of running sequences, in order.
        maximum: The largest number of running sequences.
        pages: The pages of the model.
        reuse: Finds cached prefixes of sequences.
        counts: The engine's counts.

    Attributes:
        waiting: The waiting sequences, in order.
        running: As in the arguments.
    """

    def __init__(
        self, running: list[Sequence], maximum: int, pages: Pages, reuse: Reuse, counts: Counts
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running = running
        self._limit = maximum
        self._pages = pages
        self._reuse = reuse
        self._counts = counts

    def wait(self, sequence: Sequence) -> None:
        """Add *sequence* to the waiting ones, in order."""
        bisect.insort(self.waiting, sequence, key=by_order)

    def admit(self, drafts: Drafts | None, cost: StepCost) -> list[tuple[Sequence, NpurtError]]:
        """Admit waiting sequences, in order, while pages are free.

        If no sequence is running, the first one is admitted without this check: no pages would be
        released for it.

        Returns:
            The sequences that cannot run, each with its error.
        """
        failed = []
        for sequence in [sequence for sequence in self.waiting if sequence.ready]:
            if len(self.running) == self._limit or (self.running and not self._fits(sequence)):
                break
            try:
                context = self._reuse.new_context()
            except NpurtError as error:
                if self.running:
                    break
                failed.append((sequence, error))
                continue
            self._make_space(sequence)
            sequence.begin(context, drafts, cost)
            self.waiting.remove(sequence)
            bisect.insort(self.running, sequence, key=by_order)
        return failed

    def _fits(self, sequence: Sequence) -> bool:
        """Return whether *sequence* can be admitted, also if that needs eviction of prefixes."""
        needed, shared, entry = self._needed(sequence)
        if needed - shared <= self._pages.free():
            return True
        prefixes = self._reuse.prefixes
        others = [each for each in prefixes if each is not entry]
        return needed - shared <= self._pages.free(others) or needed <= self._pages.free(prefixes)

    def _make_space(self, sequence: Sequence) -> None:
        """Evict cached prefixes until *sequence* can be admitted, its own prefix last."""
        while True:
            needed, shared, entry = self._needed(sequence)
            if entry:
                self._reuse.prefixes.use(entry)
            if needed - shared <= self._pages.free() or not self._reuse.prefixes.evict():
                return

    def _needed(self, sequence: Sequence) -> tuple[int, int, Entry | None]:
        """Return how many pages must be free to admit *sequence*.

        Returns:
            The number of pages for *sequence* and for the prompts that are being evaluated, plus
            spare pages; the number of pages that *sequence* shares with another sequence; the
            cached entry that has the shared pages, or None.  There is one spare page, and each
            preemption of *sequence* doubles this number.  Otherwise *sequence* could be preempted
            and evaluated again endlessly.
        """
        promised = sum(self._pages.growth(each, each.pending) for each in self.running)
        _, entry, shared, _ = self._reuse.beginning(sequence)
        needed = promised + self._pages.count(len(sequence.history)) + (1 << sequence.preempted)
        return needed, shared // PAGE, entry

    def require_pages(self, sequence: Sequence, rows: int) -> bool:
        """Free pages for *rows* more tokens; return False if *sequence* itself was preempted."""
        growth = self._pages.growth(sequence, rows)
        while sequence.context and growth and growth > self._pages.free():
            if self.running == [sequence] and not len(self._reuse.prefixes):
                raise OutOfPages(
                    f"no page is free for a sequence of {len(sequence.history)} tokens alone",
                    remedy="release other contexts of the model",
                )
            self.free_a_page()
        if sequence.context:
            self._pages.claimed[sequence] = growth
        return sequence.context is not None

    def free_a_page(self) -> None:
        """Evict the least recently used prefix, or else preempt the youngest sequence."""
        if not self._reuse.prefixes.evict():
            self.preempt(self.running[-1])

    def preempt(self, sequence: Sequence) -> None:
        """Release the pages of *sequence*, and let it wait to be evaluated again."""
        self._counts.preempted += 1
        sequence.preempted += 1
        self.running.remove(sequence)
        self._pages.claimed.pop(sequence, None)
        if context := sequence.leave():
            context.release()
        self.wait(sequence)
