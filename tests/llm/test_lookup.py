"""Tests of lookup: drafts come only from the current sequence, not from earlier sequences."""

import contextlib

from npurt.llm.spec.lookup import Lookup
from tests.llm.conftest import drafted


class Interrupted(list):
    """A token sequence whose reading is interrupted by Ctrl-C."""

    def __getitem__(self, at):
        if isinstance(at, slice) and (at.start or 0) > len(self) // 2:
            raise KeyboardInterrupt
        return list.__getitem__(self, at)


def test_a_text_that_agrees_with_the_last_in_one_place_is_another():
    lookup = Lookup()
    drafted(lookup, [1, 2, 3, 4, 1, 2], 3)

    assert drafted(lookup, [9, 8, 7, 6, 5, 2, 3], 3) == []


def test_a_text_that_was_broken_off_leaves_nothing_that_a_shorter_one_has_not():
    lookup = Lookup()
    drafted(lookup, [5, 6, 7], 1)
    with contextlib.suppress(KeyboardInterrupt):
        drafted(lookup, Interrupted([5, 6, 7, *range(20, 60)]), 1)

    assert drafted(lookup, [5, 6, 7, 30], 4) == []
    assert drafted(lookup, [5, 6, 7, 5, 6], 4) == [7, 5]
