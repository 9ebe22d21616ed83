"""Tests of the rows of a run and their sequences."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npurt.graph.rows import Rows


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 5)), min_size=1),
)
def test_rows_that_are_joined_are_those_of_one_table(pieces):
    """`Rows.joined` gives the rows of each sequence without a search; a search gives the same."""
    sizes = [(n, count, start, min(wanted, count)) for n, (count, start, wanted)
             in enumerate(pieces)]  # fmt: skip

    joined = Rows.joined([Rows.of(count, start, wanted=wanted, sequence=n)
                          for n, count, start, wanted in sizes])  # fmt: skip

    positions = [start + i for _, count, start, _ in sizes for i in range(count)]
    wanted = [i >= count - wanted for _, count, _, wanted in sizes for i in range(count)]
    sequences = [n for n, count, _, _ in sizes for _ in range(count)]
    assert joined.positions.tolist() == positions
    assert joined.wanted.tolist() == wanted
    assert joined.sequences.tolist() == sequences
    table = Rows(np.array(sequences, int), np.array(positions, int), np.array(wanted, bool))
    found, searched = joined.by_sequence(), table.by_sequence()
    assert [(s.sequence, s.rows.tolist(), s.first, s.end) for s in found] == [
        (s.sequence, s.rows.tolist(), s.first, s.end) for s in searched
    ]
