"""Which sequence has which pages of keys and values.

A page has the same number in every attention of a part.  Sequences share pages after a fork; what
has several owners is never written: a sequence that has to write there gets a copy of its own.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.errors import OutOfPages

CopyPage = Callable[[int, int, int], None]  # from a page, to a page, so many positions


class Pages:
    """The pages of a part: their owners, and those that are free.

    A page that was never used costs no memory, so one that was given back is taken before.

    Args:
        total: How many there are.
        copy: Copies the first positions of a page to another page.
    """

    def __init__(self, total: int, copy: CopyPage) -> None:
        self.size = int(abi.limits().page)
        self.total = total
        self.copy = copy
        self._lists: weakref.WeakSet[PageList] = weakref.WeakSet()
        self._owners: dict[int, int] = {}  # how many sequences have a page
        self._returned: list[int] = []
        self._fresh = 0  # pages from here on were never used

    @property
    def free(self) -> int:
        """Pages that no sequence has."""
        return self.total - len(self._owners)

    def free_without(self, lists: Iterable["PageList"]) -> int:
        """Return how many pages would be free without those of *lists*."""
        gone = Counter(page for each in lists for page in each.numbers.tolist())
        return self.free + sum(self._owners[page] == count for page, count in gone.items())

    def count(self, length: int) -> int:
        """Return how many pages *length* positions take."""
        return -(-length // self.size)

    def require(self, needed: int) -> None:
        """Check that *needed* pages can be taken.

        Raises:
            OutOfPages: There are fewer.
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
        """Count the owners of these, too."""
        self._lists.add(pages)

    def _count_again(self) -> None:
        """Count the owners again: Ctrl-C may have interrupted a change of the counts."""
        owners = Counter(page for each in self._lists for page in each.numbers.tolist())
        self._owners = dict(owners)
        self._returned = [page for page in range(self._fresh) if page not in owners]

    def take(self) -> int:
        """Return a free page, for one owner; `require` has passed."""
        if self._returned:
            page = self._returned.pop()
        else:
            page = self._fresh
            self._fresh += 1
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add an owner."""
        self._owners[page] += 1

    def release(self, page: int) -> None:
        """Remove an owner; the page is free when it was the last."""
        self._owners[page] -= 1
        if not self._owners[page]:
            del self._owners[page]
            self._returned.append(page)

    def is_shared(self, page: int) -> bool:
        """Say whether several sequences have *page*."""
        return self._owners[page] > 1


class PageList:
    """The pages of one sequence, from position 0 on.

    Args:
        most: Positions of a sequence at most.
    """

    def __init__(self, pages: Pages, most: int) -> None:
        self._pages = pages
        self._numbers = np.zeros(pages.count(most), np.int32)
        self._count = 0
        pages.follow(self)

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The page numbers; the array changes with the list."""
        return self._numbers[: self._count]

    def needed(self, start: int, end: int) -> int:
        """Return how many pages to take before positions from *start* to *end* are written."""
        if self._has(start, end):
            return 0
        pages, before = self._pages, start // self._pages.size
        kept = min(pages.count(start), self._count)
        copied = int(kept > before and pages.is_shared(int(self._numbers[before])))
        return copied + pages.count(end) - kept - self.alone(kept)

    def _has(self, start: int, end: int) -> bool:
        """Say whether all these positions are in the last page, which nobody else has."""
        last, size = self._count - 1, self._pages.size
        inside = size * last <= start < end <= size * (last + 1)
        return inside and not self._pages.is_shared(int(self._numbers[last]))

    def alone(self, first: int = 0) -> int:
        """Return how many pages, from that with number *first* on, nobody else has."""
        listed = self._numbers[first : self._count].tolist()
        return sum([not self._pages.is_shared(page) for page in listed])

    def reserve(self, start: int, end: int) -> None:
        """Let positions from *start* to *end* have pages of their own; later ones lose theirs.

        Raises:
            OutOfPages: There are too few; nothing has changed.
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
        """Let the first *end* positions have pages, and those from *start* on pages of their own.

        What they hold is kept; the pages of later positions are given back.

        Raises:
            OutOfPages: There are too few; nothing has changed.
        """
        pages, first = self._pages, start // self._pages.size
        kept = min(pages.count(end), self._count)
        shared = [i for i in range(first, kept) if pages.is_shared(int(self._numbers[i]))]
        pages.require(len(shared) + pages.count(end) - kept)
        self.truncate(end)
        for i in shared:
            self._copy(i, pages.size)
        while self._count < pages.count(end):
            self._numbers[self._count] = pages.take()
            self._count += 1

    def _copy(self, index: int, count: int) -> None:
        """Replace a shared page by a new one with its first *count* positions."""
        shared, own = int(self._numbers[index]), self._pages.take()
        self._pages.copy(shared, own, count)
        self._numbers[index] = own
        self._pages.release(shared)

    def truncate(self, length: int) -> None:
        """Give back the pages of all but the first *length* positions."""
        kept = min(self._pages.count(length), self._count)
        given_back = self._numbers[kept : self._count].tolist()
        self._count = kept
        for page in reversed(given_back):  # so that they are taken in their order
            self._pages.release(page)

    def begin_with(self, source: "PageList", length: int) -> None:
        """Let an empty list begin with *length* positions of *source*: share whole pages.

        The part after them is copied, to a page that has to be free.
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
