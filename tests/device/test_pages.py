"""Tests of the pages of keys and values: the pages of each sequence, and shared pages."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from npurt.device.pages import PageList, PagePool
from npurt.errors import OutOfPages

SIZE, MAX_POSITIONS = 64, 300  # positions of a page, and of a sequence


class Sequences(RuleBasedStateMachine):
    """Sequences write numbers to the positions of their pages, and must read them again."""

    @initialize(total=st.integers(1, 12))
    def begin(self, total):
        self.memory = {}  # (page, position in the page) -> the number written there
        self.pages = PagePool(total, self.copy)
        self.lists, self.written = {}, {}
        self.next = 0

    def copy(self, source, target, count):
        for i in range(count):
            self.memory[target, i] = self.memory[source, i]

    def sequences(self):
        return st.sampled_from(sorted(self.lists))

    def place(self, sequence, position):
        return int(self.lists[sequence].numbers[position // SIZE]), position % SIZE

    @rule()
    def add(self):
        self.lists[self.next] = PageList(self.pages, MAX_POSITIONS)
        self.written[self.next] = []
        self.next += 1

    def refused(self, use, needs):
        """Return whether *use* found too few pages, in which case it must change nothing."""
        before = {s: each.numbers.tolist() for s, each in self.lists.items()}
        free = self.pages.free
        try:
            use()
        except OutOfPages:
            assert needs > free
            assert self.pages.free == free
            assert {s: each.numbers.tolist() for s, each in self.lists.items()} == before
            return True
        assert needs <= free
        return False

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), count=st.integers(1, 150))
    def write(self, data, count):
        """Write from any position up to the length on; later positions are lost."""
        sequence = data.draw(self.sequences())
        start = data.draw(st.integers(0, len(self.written[sequence])))
        end = min(start + count, MAX_POSITIONS)
        if start == end:
            return
        held = self.lists[sequence].numbers.tolist()
        owners = Counter(p for each in self.lists.values() for p in each.numbers.tolist())
        kept, shared = -(-start // SIZE), start % SIZE and owners[held[start // SIZE]] > 1
        given_back = sum(owners[page] == 1 for page in held[kept:])
        needs = bool(shared) + -(-end // SIZE) - kept - given_back
        assert self.lists[sequence].needed(start, end) == needs
        if self.refused(lambda: self.lists[sequence].reserve(start, end), needs):
            return
        self.written[sequence][start:] = [(sequence, self.next, at) for at in range(start, end)]
        self.next += 1
        for at in range(start, end):
            self.memory[self.place(sequence, at)] = self.written[sequence][at]

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def change(self, data):
        """Write from any position to the end, as a context shift does."""
        sequence = data.draw(self.sequences())
        length = len(self.written[sequence])
        start = data.draw(st.integers(0, length))
        held = self.lists[sequence].numbers.tolist()
        owners = Counter(p for each in self.lists.values() for p in each.numbers.tolist())
        needs = sum(owners[page] > 1 for page in held[start // SIZE :])
        if self.refused(lambda: self.lists[sequence].own(start, length), needs):
            return
        for at in range(start, length):
            self.written[sequence][at] = (sequence, self.next, at)
            self.memory[self.place(sequence, at)] = self.written[sequence][at]
        self.next += 1

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def fork(self, data):
        source = data.draw(self.sequences())
        length = data.draw(st.integers(0, len(self.written[source])))
        if length % SIZE and not self.pages.free:
            with pytest.raises(OutOfPages):
                self.pages.require(1)
            return
        self.lists[self.next] = PageList(self.pages, MAX_POSITIONS)
        self.lists[self.next].begin_with(self.lists[source], length)
        self.written[self.next] = self.written[source][:length]
        shared = set(self.lists[source].numbers.tolist()) & set(self.lists[self.next].numbers)
        assert len(shared) == length // SIZE
        self.next += 1

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def truncate(self, data):
        sequence = data.draw(self.sequences())
        length = data.draw(st.integers(0, len(self.written[sequence])))
        self.lists[sequence].truncate(length)
        del self.written[sequence][length:]

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def forget(self, data):
        going = data.draw(st.sets(self.sequences(), min_size=1))
        free = self.pages.free_without(self.lists[sequence] for sequence in going)
        for sequence in going:
            self.lists[sequence].truncate(0)
            del self.lists[sequence], self.written[sequence]
        assert self.pages.free == free

    @invariant()
    def sequences_read_what_they_wrote(self):
        for sequence, written in self.written.items():
            assert len(self.lists[sequence].numbers) == -(-len(written) // SIZE)
            read = [self.memory[self.place(sequence, at)] for at in range(len(written))]
            assert read == written

    @invariant()
    def pages_are_counted(self):
        used = {p for each in self.lists.values() for p in each.numbers.tolist()}
        assert used <= set(range(self.pages.total))
        assert self.pages.free == self.pages.total - len(used)


TestSequences = Sequences.TestCase


def test_pages_that_were_used_are_taken_before_those_that_never_were():
    pages = PagePool(10, lambda *_: None)
    one, two = PageList(pages, MAX_POSITIONS), PageList(pages, MAX_POSITIONS)
    one.reserve(0, 129)
    assert one.numbers.tolist() == [0, 1, 2]
    one.truncate(0)
    two.reserve(0, 200)

    assert sorted(two.numbers.tolist()) == [0, 1, 2, 3]


def test_pages_that_an_interruption_left_to_nobody_are_found_again(monkeypatch):
    pages = PagePool(3, lambda *_: None)
    one, two = PageList(pages, MAX_POSITIONS), PageList(pages, MAX_POSITIONS)
    one.reserve(0, 100)
    two.reserve(0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(PagePool, "release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.truncate(0)
    assert pages.free == 0

    one.reserve(0, 100)

    assert sorted([*one.numbers, *two.numbers]) == [0, 1, 2]
    with pytest.raises(OutOfPages, match=r"1 more pages .* 0 of 3 are free\n.*kv_bytes"):
        two.reserve(10, 65)
