"""Test that allocated ranges do not overlap, and that all of them can be freed."""

from hypothesis import given
from hypothesis import strategies as st

from npurt.base.ranges import Ranges


def test_the_first_range_that_fits_is_taken():
    ranges = Ranges(1000, 40)

    assert [ranges.allocate(n) for n in (41, 40, 1, 840)] == [0, 80, 120, 160]
    assert ranges.allocate(1) is None
    ranges.free(80, 40)
    ranges.free(0, 41)
    assert ranges.allocate(121) is None
    assert ranges.allocate(120) == 0
    assert not ranges.is_free


@given(st.data())
def test_nobody_has_what_another_has_and_nothing_is_lost(data):
    size, step = data.draw(st.integers(1, 2000)), data.draw(st.sampled_from([1, 40, 64]))
    ranges = Ranges(size, step)
    held = {}
    for _ in range(data.draw(st.integers(0, 30))):
        if held and data.draw(st.booleans()):
            start = data.draw(st.sampled_from(sorted(held)))
            ranges.free(start, held.pop(start))
            continue
        nbytes = data.draw(st.integers(1, 300))
        start = ranges.allocate(nbytes)
        if start is None:
            continue
        assert start % step == 0
        assert 0 <= start <= start + nbytes <= size
        assert all(start + nbytes <= s or s + n <= start for s, n in held.items())
        held[start] = nbytes
    for start, nbytes in held.items():
        ranges.free(start, nbytes)
    assert ranges.is_free
    assert size < step or ranges.allocate(size // step * step) == 0
