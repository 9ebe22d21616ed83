"""Split a product into tasks that fit the NPU, and divide them among its cores.  Pure integers.

B is split once, when it is packed: by N over the cores, and by K if shorter sums let more rows fit
a task.  A product with m rows is then split by M and N into tasks.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npurt.errors import LayoutError
from npurt.rknpu.isa import cbuf
from npurt.rknpu.isa.formats import NumberFormat
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.task import MAX_M, Task, max_columns

CORES = 3  # cores of an RK3588
TYPICAL_ROWS = 128  # rows of a prefill batch, for which the split of B is optimised
TILE_N = 4096  # columns of one task; 8192 fits, but a float16 task once led to a timeout [?]
LINE = 64  # bytes; alignment of the parts of a buffer


class Interval(NamedTuple):
    """Part of a dimension."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first index after the interval."""
        return self.start + self.size


def split(total: int, parts: int, step: int) -> tuple[Interval, ...]:
    """Split *total* into at most *parts* intervals of similar size, in multiples of *step*."""
    units = total // step
    parts = min(parts, units)
    edges = [units * i // parts * step for i in range(parts + 1)]
    return tuple(Interval(start, end - start) for start, end in itertools.pairwise(edges))


def padded(size: int, step: int) -> int:
    """Return *size*, rounded up to a multiple of *step*."""
    return -(-size // step) * step


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The split of B ``[N, K]`` into cores and slices of K.

    The image of a core has the core's rows of B, one slice of K after another.
    """

    format: NumberFormat
    n: int
    k: int
    cores: tuple[Interval, ...]  # intervals of padded N, without cores that have no rows
    slices: tuple[Interval, ...]  # intervals of padded K; C is the sum of the slices' products

    @property
    def k_padded(self) -> int:
        """Padded columns of A and B."""
        return self.slices[-1].end

    def image_bytes(self, core: int) -> int:
        """Return the bytes of a core's image."""
        return self.cores[core].size * self.format.in_bytes(self.k_padded)


@functools.lru_cache(maxsize=1024)
def plan_weights(
    format: NumberFormat,
    n: int,
    k: int,
    *,
    cores: int = CORES,
    rows: int = TYPICAL_ROWS,
    max_k: int | None = None,
) -> WeightPlan:
    """Split B ``[N, K]`` so that products with about *rows* rows transfer the fewest bytes.

    If K is large, few rows fit CBUF beside a group of kernels, and the NPU reads B again for each
    tile of rows.  A split of K reduces these reads, but adds writes of partial sums.

    Raises:
        LayoutError: A size is below 1.
    """
    if min(n, k, cores, rows) < 1:
        raise LayoutError(
            f"no product has N = {n}, K = {k}, rows = {rows} on {cores} cores",
            remedy="use sizes from 1",
        )
    maximum = padded(min(max_k or format.k_max, format.k_max), format.k_step)
    k_padded, n_padded = padded(k, format.k_step), padded(n, format.n_step)
    best: tuple[int, tuple[Interval, ...]] | None = None
    for parts in range(-(-k_padded // maximum), k_padded // format.k_step + 1):
        slices = split(k_padded, parts, format.k_step)
        fit = max_rows(format, max(part.size for part in slices), Layout.ROW)
        if not fit:
            continue
        tiles = -(-rows // fit)
        moved = tiles * format.in_bytes(k_padded) * n_padded
        # The NPU writes the results, and the host reads them.
        moved += 2 * parts * rows * n_padded * format.out_bytes
        if best is None or moved < best[0]:
            best = moved, slices
        if tiles == 1:
            break
    assert best is not None  # one step of K always fits
    return WeightPlan(format, n, k, split(n_padded, cores, format.n_step), best[1])


def max_rows(format: NumberFormat, k: int, layout: Layout) -> int:
    """Return the most rows of A that fit one task, a multiple of the panel; 0 if none fits."""
    if layout is Layout.NATIVE_W:
        return cbuf.max_width(format, k)
    panel = 1 if layout is Layout.NATIVE_H else layout.panel_rows
    return panel * cbuf.max_lines(format, k, panel)


class OutputBlock(NamedTuple):
    """Part of a core's C: ``[slices, rows, n]``, each ``[rows, n]`` in the plan's layout."""

    n: Interval  # columns, in padded N
    offset: int  # bytes from the start of the core's C


class Tile(NamedTuple):
    """A task, its first row, K index and column, and its offsets in the buffers of its core."""

    task: Task
    m: int  # first row of A and C
    k: int  # first column of A and B
    n: int  # first column of C
    a: int  # bytes from the start of A
    b: int  # bytes from the start of the core's image of B
    c: int  # bytes from the start of the core's C


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """The tasks of one product with *m* rows."""

    weights: WeightPlan
    m: int
    rows: int  # rows of A and C: *m* padded to whole panels
    layout: Layout
    tiles: tuple[tuple[Tile, ...], ...]  # tasks of each core
    blocks: tuple[tuple[OutputBlock, ...], ...]  # blocks of each core's C
    c_bytes: tuple[int, ...]  # bytes of each core's C

    @property
    def a_bytes(self) -> int:
        """Bytes of A, which every core reads."""
        return self.rows * self.weights.format.in_bytes(self.weights.k_padded)


@functools.lru_cache(maxsize=1024)
def plan(
    weights: WeightPlan,
    m: int,
    layout: Layout = Layout.ROW,
    *,
    max_m: int | None = None,
    max_n: int = TILE_N,
) -> ProductPlan:
    """Split a product with *m* rows into tasks of at most *max_m* rows and *max_n* columns.

    Raises:
        LayoutError: *m* is below 1, or the rows do not fit one task and the layout has no split.
    """
    format = weights.format
    rows = padded(m, layout.panel_rows)
    fit = min(max_rows(format, part.size, layout) for part in weights.slices)
    fit = min(fit, MAX_M, max_m or fit) // layout.panel_rows * layout.panel_rows
    if m < 1 or fit < 1 or (layout is Layout.NATIVE_H and rows > fit):
        raise LayoutError(
            f"{m} rows of {layout.value} cannot be cut into tasks of {fit}",
            remedy="use at least 1 row, and layout 'row' or 'native-w' for many rows",
        )
    step = format.n_step
    max_n = max(min(max_n, max_columns(format, layout)) // step, 1) * step
    row_intervals = split(rows, -(-rows // fit), layout.panel_rows)
    tiles, blocks, sizes = [], [], []
    for core in weights.cores:
        column_intervals = [
            Interval(core.start + part.start, part.size)
            for part in split(core.size, -(-core.size // max_n), step)
        ]
        blocks.append(tuple(_blocks(weights, rows, column_intervals)))
        tiles.append(tuple(_tiles(weights, rows, layout, core, row_intervals, blocks[-1])))
        sizes.append(blocks[-1][-1].offset + _block_bytes(weights, rows, column_intervals[-1]))
    return ProductPlan(weights, m, rows, layout, tuple(tiles), tuple(blocks), tuple(sizes))


def _block_bytes(weights: WeightPlan, rows: int, columns: Interval) -> int:
    return len(weights.slices) * rows * columns.size * weights.format.out_bytes


def _blocks(
    weights: WeightPlan, rows: int, column_intervals: list[Interval]
) -> Iterator[OutputBlock]:
    offset = 0
    for columns in column_intervals:
        yield OutputBlock(columns, offset)
        offset += padded(_block_bytes(weights, rows, columns), LINE)


def _tiles(
    weights: WeightPlan,
    rows: int,
    layout: Layout,
    core: Interval,
    row_intervals: tuple[Interval, ...],
    blocks: tuple[OutputBlock, ...],
) -> Iterator[Tile]:
    """Yield the tasks of a core; tasks with the same weights are consecutive."""
    format = weights.format
    for n, offset in blocks:
        for i, k in enumerate(weights.slices):
            group_rows = n.start - core.start
            b = core.size * format.in_bytes(k.start) + group_rows * format.in_bytes(k.size)
            partial = offset + i * rows * n.size * format.out_bytes
            for m in row_intervals:
                task = Task(format, layout, m.size, k.size, n.size, rows, weights.k_padded)
                a = task.offset_in_a(m.start, k.start)
                c = partial + task.offset_in_c(m.start)
                yield Tile(task, m.start, k.start, n.start, a, b, c)
