"""Which texts run: they begin in order when their pages are free, and the youngest gives way.

A prompt begins when its pages and one more are free.  When a text needs a page and none is free,
kept prefixes go first; then the youngest text loses its pages, and is evaluated again later.
"""

import bisect
from operator import attrgetter

from npurt.errors import NpurtError, OutOfPages
from npurt.llm.batch.controller import StepCost
from npurt.llm.batch.events import Counts
from npurt.llm.batch.pages import Pages
from npurt.llm.batch.prefixes import PAGE, Entry
from npurt.llm.batch.reuse import Reuse
from npurt.llm.batch.sequence import Sequence
from npurt.llm.spec.opening import Drafts

by_order = attrgetter("order")


class Admission:
    """The texts that wait and run.

    Args:
        running: The texts that run, in order.
        most: How many may.
        pages: Which they share.
        reuse: What was evaluated of texts already.
        counts: Of the engine.

    Attributes:
        waiting: The texts that wait, in order.
        running: As given.
    """

    def __init__(
        self, running: list[Sequence], most: int, pages: Pages, reuse: Reuse, counts: Counts
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running = running
        self._most = most
        self._pages = pages
        self._reuse = reuse
        self._counts = counts

    def wait(self, text: Sequence) -> None:
        """Have *text* wait behind those before it."""
        bisect.insort(self.waiting, text, key=by_order)

    def admit(self, drafts: Drafts | None, cost: StepCost) -> list[tuple[Sequence, NpurtError]]:
        """Let waiting texts begin, in order, while there is room; return those that cannot.

        A text that runs alone begins in any case: nothing else will make room for it.
        """
        failed = []
        for text in [text for text in self.waiting if text.ready]:
            if len(self.running) == self._most or (self.running and not self._fits(text)):
                break
            try:
                context = self._reuse.new_context()
            except NpurtError as error:
                if self.running:
                    break
                failed.append((text, error))
                continue
            self._make_room(text)
            text.begin(context, drafts, cost)
            self.waiting.remove(text)
            bisect.insort(self.running, text, key=by_order)
        return failed

    def _fits(self, text: Sequence) -> bool:
        """Return whether *text* can begin, if need be after kept prefixes have gone."""
        needed, shared, entry = self._needed(text)
        if needed - shared <= self._pages.free():
            return True
        kept = self._reuse.prefixes
        others = [each for each in kept if each is not entry]
        return needed - shared <= self._pages.free(others) or needed <= self._pages.free(kept)

    def _make_room(self, text: Sequence) -> None:
        """Free the pages of a text that begins; the prefix that it begins with goes last."""
        while True:
            needed, shared, entry = self._needed(text)
            if entry:
                self._reuse.prefixes.use(entry)
            if needed - shared <= self._pages.free() or not self._reuse.prefixes.evict():
                return

    def _needed(self, text: Sequence) -> tuple[int, int, Entry | None]:
        """Return how many pages must be free for *text* to begin.

        Returns:
            Its own pages, one more, and those of prompts that are being read; how many of them it
            shares with another text; that text's entry, if it is kept.  The spare page doubles with
            each preemption of *text*; else it could be preempted, and evaluated again, endlessly.
        """
        promised = sum(self._pages.growth(each, each.pending) for each in self.running)
        _, entry, shared, _ = self._reuse.beginning(text)
        needed = promised + self._pages.count(len(text.history)) + (1 << text.preempted)
        return needed, shared // PAGE, entry

    def require_pages(self, text: Sequence, rows: int) -> bool:
        """Free the pages for *rows* more tokens; return False if *text* had to give up its own."""
        growth = self._pages.growth(text, rows)
        while text.context and growth and growth > self._pages.free():
            if self.running == [text] and not len(self._reuse.prefixes):
                raise OutOfPages(
                    f"no page is free for a text of {len(text.history)} tokens alone",
                    remedy="release other contexts of the model",
                )
            self.free_a_page()
        if text.context:
            self._pages.claimed[text] = growth
        return text.context is not None

    def free_a_page(self) -> None:
        """Forget the kept prefix that was used least recently, or preempt the youngest text."""
        if not self._reuse.prefixes.evict():
            self.preempt(self.running[-1])

    def preempt(self, text: Sequence) -> None:
        """Free the pages of a text, which waits to be evaluated again."""
        self._counts.preempted += 1
        text.preempted += 1
        self.running.remove(text)
        self._pages.claimed.pop(text, None)
        if context := text.leave():
            context.release()
        self.wait(text)
