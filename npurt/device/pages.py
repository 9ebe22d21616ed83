"""Assign pages of keys and values to sequences.

A page has the same number in every attention of a part.  Sequences share pages after a fork.  A
shared page is never written: a sequence that must write to it gets a copy first.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from npurt.errors import OutOfPages
from npurt.graph.sizes import SIZES

CopyPage = Callable[[int, int, int], None]  # (source page, target page, number of positions)


class PagePool:
    """The pages of a part: the number of owners of each page, and the free pages.

    Pages that were used before are reused first, because a page takes no memory until its first
    use.

    Args:
        total: The number of pages.
        copy: Copies the first positions of a page to another page.
    """

    def __init__(self, total: int, copy: CopyPage) -> None:
        self.size = SIZES.page
        self.total = total
        self.copy = copy
        self._lists: weakref.WeakSet[PageList] = weakref.WeakSet()
        self._owners: dict[int, int] = {}  # page -> number of sequences that have it
        self._returned: list[int] = []  # free pages that were used before
        self._fresh = 0  # this page and all later ones were never used

    @property
    def free(self) -> int:
        """The number of free pages."""
        return self.total - len(self._owners)

    def free_without(self, lists: Iterable["PageList"]) -> int:
        """Return how many pages would be free if *lists* freed their pages."""
        gone = Counter(page for each in lists for page in each.numbers.tolist())
        return self.free + sum(self._owners[page] == count for page, count in gone.items())

    def count(self, length: int) -> int:
        """Return how many pages *length* positions need."""
        return -(-length // self.size)

    def require(self, needed: int) -> None:
        """Check that *needed* pages are free.

        Raises:
            OutOfPages: Fewer pages are free.
        """
        if needed > self.free:
            self._count_again()
        if needed > self.free:
            raise OutOfPages(
                f"{needed} more pages of {self.size} positions do not fit: {self.free} of "
                f"{self.total} are free",
                remedy="forget or shorten a sequence, or compile with a larger kv_bytes",
            )

    def follow(self, pages: "PageList") -> None:
        """Include *pages* when `_count_again` counts the owners."""
        self._lists.add(pages)

    def _count_again(self) -> None:
        """Count the owners again, because Ctrl-C may have left wrong counts."""
        owners = Counter(page for each in self._lists for page in each.numbers.tolist())
        self._owners = dict(owners)
        self._returned = [page for page in range(self._fresh) if page not in owners]

    def take(self) -> int:
        """Return a free page and set its owner count to 1; call `require` before."""
        if self._returned:
            page = self._returned.pop()
        else:
            page = self._fresh
            self._fresh += 1
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add an owner to *page*."""
        self._owners[page] += 1

    def release(self, page: int) -> None:
        """Remove an owner of *page*; without owners the page is free."""
        self._owners[page] -= 1
        if not self._owners[page]:
            del self._owners[page]
            self._returned.append(page)

    def is_shared(self, page: int) -> bool:
        """Return whether several sequences have *page*."""
        return self._owners[page] > 1


class PageList:
    """The pages of one sequence, from position 0 on.

    Args:
        maximum: The maximum number of positions of a sequence.
    """

    def __init__(self, pages: PagePool, maximum: int) -> None:
        self._pages = pages
        self._numbers = np.zeros(pages.count(maximum), np.int32)
        self._count = 0
        pages.follow(self)

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The page numbers: a view, which later changes of the list overwrite."""
        return self._numbers[: self._count]

    def needed(self, start: int, end: int) -> int:
        """Return how many more free pages `reserve` of *start* to *end* needs."""
        if self._has(start, end):
            return 0
        pages, before = self._pages, start // self._pages.size
        present = min(pages.count(start), self._count)
        copied = int(present > before and pages.is_shared(int(self._numbers[before])))
        return copied + pages.count(end) - present - self.alone(present)

    def _has(self, start: int, end: int) -> bool:
        """Return whether positions *start* to *end* are all in the last page, which is unshared."""
        last, size = self._count - 1, self._pages.size
        inside = size * last <= start < end <= size * (last + 1)
        return inside and not self._pages.is_shared(int(self._numbers[last]))

    def alone(self, first: int = 0) -> int:
        """Return how many pages of the list, from index *first* on, are unshared."""
        listed = self._numbers[first : self._count].tolist()
        return sum([not self._pages.is_shared(page) for page in listed])

    def reserve(self, start: int, end: int) -> None:
        """Give positions from *start* to *end* unshared pages, and free all later pages.

        Raises:
            OutOfPages: Too few pages are free; nothing has changed.
        """
        if self._has(start, end):
            return
        pages, (before, inside) = self._pages, divmod(start, self._pages.size)
        pages.require(self.needed(start, end))
        self.truncate(start)
        if before < self._count and pages.is_shared(int(self._numbers[before])):
            self._copy(before, inside)
        while self._count < pages.count(end):
            self._numbers[self._count] = pages.take()
            self._count += 1

    def own(self, start: int, end: int) -> None:
        """Give the first *end* positions pages; copy shared pages from *start* on.

        The pages of positions from *end* on are freed.

        Raises:
            OutOfPages: Too few pages are free; nothing has changed.
        """
        pages, first = self._pages, start // self._pages.size
        present = min(pages.count(end), self._count)
        shared = [i for i in range(first, present) if pages.is_shared(int(self._numbers[i]))]
        pages.require(len(shared) + pages.count(end) - present)
        self.truncate(end)
        for i in shared:
            self._copy(i, pages.size)
        while self._count < pages.count(end):
            self._numbers[self._count] = pages.take()
            self._count += 1

    def _copy(self, index: int, count: int) -> None:
        """Replace the shared page at *index* by a copy of its first *count* positions."""
        shared, own = int(self._numbers[index]), self._pages.take()
        self._pages.copy(shared, own, count)
        self._numbers[index] = own
        self._pages.release(shared)

    def truncate(self, length: int) -> None:
        """Free the pages of all but the first *length* positions."""
        remaining = min(self._pages.count(length), self._count)
        given_back = self._numbers[remaining : self._count].tolist()
        self._count = remaining
        for page in reversed(given_back):  # `take` returns the last one first
            self._pages.release(page)

    def begin_with(self, source: "PageList", length: int) -> None:
        """Give this empty list the first *length* positions of *source*.

        Whole pages are shared.  Other positions are copied to a free page, which must exist.
        """
        pages = self._pages
        whole, rest = divmod(length, pages.size)
        self._numbers[:whole] = source.numbers[:whole]
        for page in self._numbers[:whole].tolist():
            pages.share(page)
        self._count = whole
        if rest:
            own = pages.take()
            pages.copy(int(source.numbers[whole]), own, rest)
            self._numbers[whole] = own
            self._count += 1
