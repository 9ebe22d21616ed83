"""Tests of the row table of a run in C: the refusal of wrong tables, and the bits of each row.

The programs rotate, attend and convolve, so every part of the table is read.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool
from npurt.cpu.pool.table import RowTable, TableSpan
from npurt.errors import UnsupportedOp
from tests.cpu import cases, delta_cases
from tests.cpu.foreign import Recorded, same

ROWS, POSITIONS, PAGES, SLOTS, SIZE = 24, 320, 9, 4, abi.limits().page


@pytest.fixture(scope="module")
def engine():
    opened = CpuThreadPool(2)
    yield opened
    opened.close()


class Program:
    """Ops of every kind that reads the table, on new memory with the same inputs."""

    def __init__(self, engine, seed=0):
        rng = cases.rng_of("table", seed)
        self.program = Recorded(engine)
        shape = {"n_heads": 2, "kv_heads": 1, "width": 16, "rotated": 16, "halves": True}
        layer = cases.heads(rng, ROWS, POSITIONS - SIZE - ROWS, **shape, dtype=np.float16)
        assert len(layer.cos) == POSITIONS
        keys = rng.standard_normal((1, PAGES, *layer.k_cache.shape[2:])).astype(np.float16)
        values = rng.standard_normal((1, PAGES, *layer.v_cache.shape[2:])).astype(np.float16)
        self.layer = replace(layer, k_cache=keys, v_cache=values)
        self.conv = delta_cases.convolution(rng, rows=ROWS, heads=2, k_heads=1, width=16)
        self.conv = replace(
            self.conv, stored_inputs=delta_cases.floats(rng, SLOTS, *self.conv.stored_inputs.shape)
        )
        self.net = delta_cases.delta(rng, heads=1, width=16, tokens=ROWS, repeat=2)
        self.states = delta_cases.floats(rng, SLOTS, 2, *self.net.state.shape)
        self.gated = delta_cases.floats(rng, ROWS, 3 * 32)
        self.ring = delta_cases.floats(rng, SLOTS, 7, 32)
        self.inputs = [self.layer.qkv, self.conv.x, self.conv.gates, self.gated]
        self.inputs += [self.net.q, self.net.k, self.net.v, self.net.decay, self.net.beta]
        out = cases.empty(ROWS, 32)
        short = cases.Input(ROWS, 32, quantised=True)
        self.normed = cases.Input(ROWS, 32, quantised=False)
        self.program.rope(self.layer)
        self.program.attend(self.layer, out)
        self.program.conv(self.conv)
        self.program.delta(self.net, slots=self.states)
        self.program.shortconv(self.gated, delta_cases.floats(rng, 3, 32), self.ring, short)
        self.program.norm(out, np.ones(32, np.float32), 1e-6, self.normed, gathers=True)
        self.outs = [
            self.layer.qkv, out, self.conv.out, self.conv.out_gates, self.net.out[0], short.values
        ]  # fmt: skip

    def take_rows(self, other, start, count):
        """Copy *count* input rows of *other*, from *start* on, to the first input rows."""
        for own, theirs in zip(self.inputs, other.inputs, strict=True):
            axis = 1 if own.ndim > 2 else 0
            rows = np.take(theirs, np.arange(start, start + count), axis)
            (own[0] if axis else own)[:count] = rows[0] if axis else rows


def why_not(spans, selected, rows):
    """Return whether a table is wrong by the rules in the header."""
    listed = [[] if s.pages is None else s.pages.tolist() for s in spans]
    written = [
        {at // SIZE for at in range(s.position, s.position + s.rows)} if s.position >= 0 else set()
        for s in spans
    ]
    numbers = [page for each in listed for page in each]
    return (
        any(s.rows < 1 or s.position < 0 or not 0 <= s.slot < SLOTS for s in spans)
        or any(s.position + s.rows > POSITIONS for s in spans)
        or sum(s.rows for s in spans) != rows
        or len({s.slot for s in spans}) != len(spans)
        or any(not 0 <= page < PAGES for page in numbers)
        or any(max(w, default=0) >= len(pages) for w, pages in zip(written, listed, strict=True))
        or any(
            numbers.count(pages[at]) > 1
            for w, pages in zip(written, listed, strict=True)
            for at in w
        )
        or sorted(set(selected)) != list(selected)
        or any(not 0 <= row < rows for row in selected)
    )


@st.composite
def tables(draw):
    """Return spans, selected rows and a number of rows; some are made wrong by one change."""
    free, spans = draw(st.permutations(range(PAGES))), []
    slots = draw(st.permutations(range(SLOTS)))
    for slot in slots[: draw(st.integers(1, SLOTS))]:
        rows = draw(st.integers(1, 6))
        position = draw(st.sampled_from([0, 1, 60, 63, 64, 100, 130]))
        count = -(-(position + rows) // SIZE) + draw(st.integers(0, 1))
        spans.append(TableSpan(rows, position, slot, np.array(free[:count], np.int32)))
        free = free[count:]
    total = sum(span.rows for span in spans)
    flags = draw(st.lists(st.booleans(), min_size=total, max_size=total))
    selected = [row for row, flag in enumerate(flags) if flag]
    change = draw(st.sampled_from(["nothing"] * 3 + ["rows", "position", "slot", "page", "listed",
                                                    "selected", "shared", "gap"]))  # fmt: skip
    which = draw(st.integers(0, len(spans) - 1))
    span, odd = spans[which], draw(st.integers(-2, 3))
    if change == "rows":
        spans[which] = span._replace(rows=span.rows * odd)
    elif change == "position":
        spans[which] = span._replace(position=draw(st.sampled_from([-1, 250, 315, 320, 1 << 40])))
    elif change == "slot":
        spans[which] = span._replace(slot=draw(st.integers(-1, SLOTS)))
    elif change == "page" and len(span.pages):
        span.pages[draw(st.integers(0, len(span.pages) - 1))] = draw(
            st.sampled_from([-1, PAGES, PAGES + 1, (1 << 31) - 1, 0])
        )
    elif change == "listed":
        spans[which] = span._replace(pages=span.pages[:odd])
    elif change == "shared":
        spans[which] = span._replace(pages=spans[0].pages.copy())
    elif change == "selected":
        selected.insert(draw(st.integers(0, len(selected))), draw(st.integers(-1, total)))
    return spans, np.array(selected, np.int32), total + (change == "gap")


def table_of(spans, selected, rows):
    table = RowTable(spans, selected)
    table.struct.rows = rows
    return table


@given(tables())
def test_what_is_no_table_is_refused_and_changes_nothing(engine, drawn):
    spans, selected, rows = drawn
    made = Program(engine)
    before = [array.copy() for array in made.program.arrays]

    if rows <= ROWS and not why_not(spans, selected, rows):
        assert made.program.run(table_of(*drawn)) == len(made.program)
        return
    with pytest.raises(UnsupportedOp):
        made.program.run(table_of(*drawn))
    for array, was in zip(made.program.arrays, before, strict=True):
        same(array, was)


@given(tables())
def test_every_sequence_gets_the_bits_that_it_gets_alone(engine, drawn):
    spans, selected, rows = drawn
    if rows > ROWS or why_not(spans, selected, rows):
        return
    together = Program(engine)
    inputs = Program(engine)
    assert together.program.run(table_of(*drawn)) == len(together.program)

    first, alone = 0, Program(engine)  # one sequence after the other, on the same caches and states
    for span in spans:
        alone.take_rows(inputs, first, span.rows)
        assert alone.program.run(RowTable([span])) == len(alone.program)
        for have, want in zip(together.outs, alone.outs, strict=True):
            same(have[first : first + span.rows], want[: span.rows])
        here = [i for i, row in enumerate(selected) if first <= row < first + span.rows]
        same(together.normed.values[here], alone.normed.values[selected[here] - first])
        first += span.rows
    for name in ("states", "ring"):
        same(getattr(together, name), getattr(alone, name))
    same(together.conv.stored_inputs, alone.conv.stored_inputs)
    for cache in ("k_cache", "v_cache"):
        same(getattr(together.layer, cache), getattr(alone.layer, cache))


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ([TableSpan(2), TableSpan(0, 0, 1)], "rows of a sequence: 0, must be 1 to 0"),
        ([TableSpan(2), TableSpan(1)], "two sequences have the same slot"),
        (
            [TableSpan(1, 64, 0, np.array([3], np.int32))],
            "op 0, a row is beyond the pages of its seq",
        ),
        (
            [TableSpan(1, 0, 0, np.array([PAGES], np.int32))],
            "op 0, pages of a cache: 10, must be 0 to 9",
        ),
        ([TableSpan(1, 0, 0, np.array([-1], np.int32))], "page of a sequence: -1"),
        (
            [TableSpan(1, 0, SLOTS, np.array([0], np.int32))],
            "op 2, slots of sequences: 5, must be 0 to 4",
        ),
        (
            [TableSpan(1, 0, i, np.array([5], np.int32)) for i in (0, 1)],
            "uses by a sequence of a page that a row is written to: 1, must be 0 to 0",
        ),
        (
            [TableSpan(1, 64, 0, np.array([5, 5], np.int32))],
            "uses by a sequence of a page that a row is written to: 2, must be 0 to 1",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said(engine, spans, match):
    made = Program(engine)
    with pytest.raises(UnsupportedOp, match=match):
        made.program.run(RowTable(spans))


def test_rows_at_the_end_that_belong_to_nobody_are_refused(engine):
    made, table = Program(engine), RowTable([TableSpan(1, 0, 0, np.array([0], np.int32))])
    table.struct.rows = 2
    with pytest.raises(UnsupportedOp, match="rows at the end belong to no sequence"):
        made.program.run(table)
    table.struct.rows, table._spans[0].first = 1, 1
    with pytest.raises(UnsupportedOp, match="first row of a sequence: 1, must be 0 to 0"):
        made.program.run(table)
