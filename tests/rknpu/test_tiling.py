"""Test plans: the buffer rule against published points, coverage, limits and bytes moved."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.rknpu.isa import cbuf
from npurt.rknpu.isa.formats import FORMATS, number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import template
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan import cost
from npurt.rknpu.plan.tiling import max_rows, plan, plan_weights, split
from tests.rknpu.fixtures import load

CASES = load("cbuf_cases.json")["cases"]

# Rows that fit at each K: what the rule gives by hand for one pixel a line.  happyme531 measured
# 64 at 4096, 32 at 6144 and 16 at 8192 in int8; TF32 works at 4096 and hangs at 5120.
MAX_ROWS = {
    "int8": {512: 704, 1024: 352, 2048: 160, 3072: 96, 4096: 64, 5120: 44, 6144: 32, 8192: 16,
             10240: 6, 11008: 2, 11264: 2, 11296: 0},
    "fp16": {512: 352, 1024: 176, 2048: 80, 4096: 32, 8192: 8, 11008: 1, 11264: 1, 11296: 0},
    "int4": {1024: 704, 2048: 320, 4096: 128, 8192: 32},
    "tf32": {1024: 80, 2048: 32, 4096: 8, 5632: 1, 5648: 0},
}  # fmt: skip


@st.composite
def products(draw):
    """Draw (weights, plan) of small products with all options varied."""
    number_form = FORMATS[draw(st.sampled_from(sorted(FORMATS)))]
    layout = draw(st.sampled_from(Layout))
    m = draw(st.integers(1, 70))
    weights = plan_weights(
        number_form,
        draw(st.integers(1, 700)),
        draw(st.integers(1, 700)),
        cores=draw(st.integers(1, 3)),
        rows=draw(st.integers(1, 512)),
        max_k=draw(st.none() | st.integers(1, 700)),
    )
    max_m = None if layout is Layout.NATIVE_H else draw(st.none() | st.integers(16, 80))
    return weights, plan(weights, m, layout, max_m=max_m, max_n=draw(st.integers(64, 512)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c[:5])))
def test_the_buffer_rule_agrees_with_every_published_point(case):
    dtype, m, k, data_banks, weight_banks, observed, _ = case
    number_form = number_format(dtype)

    need = cbuf.data_banks(number_form, k, 1, m), cbuf.weight_banks(number_form, k)

    fits = need[0] <= data_banks and need[1] <= weight_banks
    assert ("ok" if fits else "bad") == observed


@pytest.mark.parametrize("name", MAX_ROWS)
def test_the_most_rows_of_a_task(name):
    assert {k: max_rows(number_format(name), k, Layout.ROW) for k in MAX_ROWS[name]} == MAX_ROWS[
        name
    ]


@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(Layout), st.integers(1, 400))
def test_the_most_rows_fit_and_one_panel_more_does_not(name, layout, steps):
    number_form = number_format(name)
    k = steps * number_form.k_step
    maximum = max_rows(number_form, k, layout)

    def fits(rows):
        width = rows if layout is Layout.NATIVE_W else layout.panel_rows
        try:
            cbuf.split(number_form, k, width, rows // width)
        except LayoutError:
            return False
        return width <= 2047 and rows // width + 1 < 1 << 10

    assert maximum == 0 or fits(maximum)
    assert not fits(maximum + layout.panel_rows)


@pytest.mark.parametrize(("k", "entries"), [(32, 2), (64, 4), (96, 8), (128, 8), (160, 10)])
def test_pixels_of_a_line_share_entries(k, entries):
    """The cases are eight int4 pixels of 1 to 5 atoms, the tails of happyme531's panel8."""
    assert cbuf.entries(number_format("int4"), k, 8) == entries


def test_half_an_entry_a_line_is_counted():
    """At K % 64 == 32, the last 32 bytes of each int8 row take a whole entry."""
    int8 = number_format("int8")

    assert cbuf.data_banks(int8, 672, 1, 144) == 4  # 144 * 672 bytes need only 3
    assert cbuf.data_banks(int8, 672, 144, 1) == 3  # pixels of one line share entries


@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from([1, 16, 64]))
def test_a_cut_covers_its_dimension_in_even_steps(units, parts, step):
    parts_of = split(units * step, parts, step)

    assert parts_of[0].start == 0
    assert parts_of[-1].end == units * step
    assert all(a.end == b.start for a, b in itertools.pairwise(parts_of))
    assert all(part.size % step == 0 for part in parts_of)
    sizes = [part.size for part in parts_of]
    assert max(sizes) - min(sizes) <= step
    assert len(parts_of) == min(parts, units)


@given(products())
def test_every_product_of_elements_is_computed_once(case):
    weights, product = case
    count = np.zeros((product.rows, weights.cores[-1].end, len(weights.slices)), np.int64)
    starts = {part.start: i for i, part in enumerate(weights.slices)}

    for tiles, core in zip(product.tiles, weights.cores, strict=True):
        for tile in tiles:
            assert core.start <= tile.n
            assert tile.n + tile.task.n <= core.end
            i = starts[tile.k]
            assert tile.task.k == weights.slices[i].size
            count[tile.m : tile.m + tile.task.m, tile.n : tile.n + tile.task.n, i] += 1

    assert (count == 1).all()
    assert weights.cores[0].start == weights.slices[0].start == 0
    assert weights.cores[-1].end >= weights.n
    assert weights.k_padded >= weights.k
    assert product.rows >= product.m


@given(products())
def test_every_task_fits_the_banks_and_no_core_is_idle(case):
    _, product = case

    for tiles in product.tiles:
        assert tiles
        for tile in tiles:
            task = tile.task
            data, weight = cbuf.split(
                task.format, task.k, task.features.width, task.features.height
            )
            assert data + weight <= 12
            assert data >= cbuf.data_banks(task.format, task.k, task.features.width,
                                           task.features.height)  # fmt: skip
            assert weight >= cbuf.weight_banks(task.format, task.k)
            assert task.k <= task.format.k_max


@st.composite
def large_products(draw):
    """Draw arguments of products at and above the largest sizes that registers can hold."""
    number_form = FORMATS[draw(st.sampled_from(sorted(FORMATS)))]
    weights = plan_weights(
        number_form, draw(st.integers(1, 3 * 9000)), draw(st.integers(1, 2 * number_form.k_max)),
        cores=draw(st.integers(1, 3)), rows=draw(st.integers(1, 5000)),
    )  # fmt: skip
    return weights, draw(st.integers(1, 5000)), draw(st.integers(512, 9000))


@given(large_products(), st.sampled_from(Layout))
def test_every_task_of_a_plan_fits_the_registers(case, layout):
    """The planner checks that the registers can hold a task, so the linker need not."""
    weights, m, max_n = case
    panel = layout.panel_rows
    rows = -(-m // panel) * panel if layout is Layout.NATIVE_H else panel
    if any(max_rows(weights.format, part.size, layout) < rows for part in weights.slices):
        with pytest.raises(LayoutError, match="cannot be cut into tasks"):
            plan(weights, m, layout, max_n=max_n)
        return
    product = plan(weights, m, layout, max_n=max_n)
    for task in {tile.task for tiles in product.tiles for tile in tiles}:
        template(task, Profile.FULL)


@pytest.mark.parametrize(("layout", "maximum"), [(Layout.PANEL8, 4096), (Layout.PANEL16, 2048)])
def test_a_line_of_panels_has_as_many_columns_as_the_notch_can_skip(layout, maximum):
    """A panel's notch is (N / 4 - 1) atoms of each of its rows, in 13 bits."""
    int8 = number_format("int8")
    product = plan(plan_weights(int8, 4096, 64, cores=1), 16, layout, max_n=8192)

    assert {tile.task.n for tile in product.tiles[0]} == {maximum}
    with pytest.raises(LayoutError, match=rf"N = {maximum + 32} is more than {maximum}"):
        Task(int8, layout, 16, 64, maximum + 32, 16, 64)


@given(products())
def test_parts_of_results_do_not_overlap_and_stay_inside(case):
    """Each byte of C belongs to exactly one task, in the arrangement of the layout."""
    weights, product = case
    size = weights.format.out_bytes

    for tiles, blocks, c_bytes in zip(product.tiles, product.blocks, product.c_bytes, strict=True):
        used = np.zeros(c_bytes, np.int8)
        for tile in tiles:
            block = next(b for b in blocks if b.n.start == tile.n)
            slice_bytes = product.rows * block.n.size * size
            index = (tile.c - block.offset) // slice_bytes
            start = block.offset + index * slice_bytes
            rows = np.arange(tile.m, tile.m + tile.task.m)
            atoms = np.arange(block.n.size * size // 16)
            panel = product.layout.panel(product.rows)
            places = start + 16 * (
                (rows[:, None] // panel * len(atoms) + atoms) * panel + rows[:, None] % panel
            )
            assert places.min() == tile.c
            for byte in range(16):
                np.add.at(used, places + byte, 1)
        assert used.max() == 1
        assert used.sum() == sum(
            len(weights.slices) * product.rows * b.n.size * size for b in blocks
        )


@given(products())
def test_images_of_weights_are_read_once_by_each_tile_of_rows(case):
    weights, product = case

    for i, tiles in enumerate(product.tiles):
        spans = sorted({(tile.b, tile.b + tile.task.weight_bytes) for tile in tiles})
        assert spans[0][0] == 0
        assert spans[-1][1] == weights.image_bytes(i)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


@given(products())
def test_what_the_tasks_move_is_counted(case):
    weights, product = case

    counts = cost.count(product)

    rows, n = product.rows, weights.cores[-1].end
    assert counts.macs == rows * n * weights.k_padded
    assert counts.result_bytes == rows * n * weights.format.out_bytes * len(weights.slices)
    assert counts.weight_bytes % (n * weights.format.in_bytes(weights.k_padded)) == 0
    assert counts.tasks == sum(map(len, product.tiles))


def test_long_sums_are_cut_so_that_a_batch_reads_the_weights_once():
    """With K = 8960 uncut, only ten rows fit, and 128 rows read 13.8 MB of weights 13 times."""
    weights = plan_weights(number_format("int8"), 1536, 8960)
    uncut = plan_weights(number_format("int8"), 1536, 8960, rows=1)

    assert len(uncut.slices) == 1
    assert cost.count(plan(uncut, 128)).weight_bytes == 13 * 1536 * 8960
    assert cost.count(plan(weights, 128)).weight_bytes == 1536 * 8960
    assert cost.count(plan(weights, 1)).moved <= 1.05 * 1536 * 8960


@pytest.mark.parametrize("rows", [1, 64, 128, 384])
@pytest.mark.parametrize("k", [1536, 4096, 4864, 8960])
def test_no_other_cut_of_long_sums_moves_fewer_bytes(k, rows):
    """Compare weights read again for each tile of rows with partial sums written and read back."""
    chosen = plan_weights(number_format("int8"), 1536, k, rows=rows)

    def moved(parts):
        split_so = dataclasses.replace(chosen, slices=split(k, parts, 32))
        counts = cost.count(plan(split_so, rows))
        return counts.weight_bytes + 2 * counts.result_bytes

    assert moved(len(chosen.slices)) == min(moved(parts) for parts in range(1, 16))


# (N, K) of fused q k v, output, fused gate and up, down, and the output matrix.
QWEN_1_5B = [(2048, 1536), (1536, 1536), (17920, 1536), (1536, 8960)] * 28 + [(151936, 1536)]


def test_decoding_moves_little_but_weights():
    plans = [plan(plan_weights(number_format("int8"), n, k), 1) for n, k in QWEN_1_5B]

    moved = sum(cost.count(each).moved for each in plans)

    assert moved <= 1.05 * sum(n * k for n, k in QWEN_1_5B)
