"""Prepare products of one input with several weights, for a number of rows, as one job.

The job's program is proven and loaded once.  A run only rounds x into the NPU's memory, submits the
job and scales the sums.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.rknpu.device.arena import Arena
from npurt.rknpu.device.needs import result_offsets
from npurt.rknpu.device.quantise import float16_scales
from npurt.rknpu.device.weights import PartOnNpu, RkPacked
from npurt.rknpu.driver.base import CoreTasks, Driver, Job
from npurt.rknpu.driver.native.host import I8, I32
from npurt.rknpu.driver.native.run import Rectangle, Target
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.tiling import LINE, OutputBlock, ProductPlan, padded, plan


class Region(NamedTuple):
    """The place of the results of one part of one weight, for each core."""

    weight: int  # index of the weight
    part: PartOnNpu
    plan: ProductPlan
    offsets: tuple[int, ...]  # bytes from the start of each core's C


class Product:
    """The products ``x @ w.T`` of *rows* rows of x with each of *weights*, as one job.

    Args:
        driver: The driver that runs the job.
        weights: Weights in *arena* with one K and one scheme.
        rows: Rows of x.
        arena: The arena of the work buffers.
        make_space: See `Driver.prepare`.
    """

    def __init__(
        self,
        driver: Driver,
        weights: Sequence[RkPacked],
        rows: int,
        arena: Arena,
        make_space: Callable[[], bool],
    ) -> None:
        self._driver = driver
        # No references to the weights, which may be dropped.
        self._parts = [tuple(w.parts) for w in weights]
        self._scheme = weights[0].scheme
        self.rows = rows
        stacked = rows * self._scheme.passes
        item = 1 if self._scheme.task == "int8" else 2
        self._a_offsets: list[int] = []
        end = 0
        for part in weights[0].parts:
            self._a_offsets.append(end)
            end += padded(stacked * part.kp * item, LINE)
        self._regions, sizes = _regions(weights, stacked)
        cores = range(len(sizes))
        self._a, self._c = arena.work_buffers(end, sizes)
        self._window = self._a[0].window(0, end)
        self._scales = np.empty((len(self._a_offsets), rows), np.float32)
        self._job: Job = driver.prepare(
            [self._core_tasks(core) for core in cores],
            [(buffer, end) for buffer in (self._a[:1] if arena.shared else self._a)],
            spaces=arena.spaces,
            make_space=make_space,
        )
        self._quantises = self._scheme.task == "int8"
        if self._quantises:
            self._job.run.add_quantise(self._targets(), weights[0].k)
        self._job.run.add_scaling(self._rectangles(), [w.n for w in weights])

    def _core_tasks(self, core: int) -> CoreTasks:
        """Return the tasks of one core with their addresses."""
        tasks: list[Task] = []
        addresses: list[tuple[int, int, int]] = []
        a, c = self._a[core].address, self._c[core].address
        for region in self._regions:
            if core >= len(region.plan.tiles):
                continue
            b = region.part.images[core].address
            at = a + self._a_offsets[self._index(region)]
            for tile in region.plan.tiles[core]:
                tasks.append(tile.task)
                addresses.append((at + tile.a, b + tile.b, c + region.offsets[core] + tile.c))
        return CoreTasks(tasks, addresses)

    def _index(self, region: Region) -> int:
        return self._parts[region.weight].index(region.part)

    def run(self, x: F32, outs: Sequence[F32], first: int = 0) -> None:
        """Write the products of x ``[rows, K]`` to *outs*, ``[rows, N]`` for each weight.

        In errors, *first* is the number of the first row.

        Raises:
            NumericsError: x holds NaN or infinity.
            DriverError: The NPU failed.
        """
        if not self._quantises:
            for part, codes, scales in zip(
                self._parts[0], self._codes(), self._scales, strict=True
            ):
                _to_float16(x[:, part.columns], codes, scales, first)
        self._job.run.bind(x, outs, first)
        self._driver.run(self._job)

    def run_i8(self, a: I8, out: I32) -> None:
        """Write the exact ``a @ w.T`` to *out* ``[rows, N]``; a ``[rows, K]`` has int8 codes.

        The product must have only one weight, of one part, and `run` must not have been called.

        Raises:
            DriverError: The NPU failed.
        """
        (codes,) = self._codes()
        codes[:, a.shape[1] :] = 0
        codes[:, : a.shape[1]] = a
        self._driver.run(self._job)
        for region in self._regions:
            for core, blocks in enumerate(region.plan.blocks):
                for block in blocks:
                    y = out[:, block.n.start : block.n.end]  # without the padding of C
                    sums = self._rectangle(region, core, block).sums[:, :, : y.shape[1]]
                    np.sum(sums, axis=0, out=y, dtype=np.int32)

    def _codes(self) -> list[npt.NDArray[Any]]:
        """Return the first core's memory for each part of x, ``[passes * rows, Kp]``."""
        dtype = np.dtype(np.int8 if self._scheme.task == "int8" else np.float16)
        rows = self.rows * self._scheme.passes
        return [
            self._window[at : at + rows * part.kp * dtype.itemsize].view(dtype).reshape(rows, -1)
            for part, at in zip(self._parts[0], self._a_offsets, strict=True)
        ]

    def _targets(self) -> list[Target]:
        return [
            Target(part.columns, part.block, part.signs, codes, scales)
            for part, codes, scales in zip(self._parts[0], self._codes(), self._scales, strict=True)
        ]

    def _rectangles(self) -> list[Rectangle]:
        return [
            self._rectangle(region, core, block)
            for region in self._regions
            for core, blocks in enumerate(region.plan.blocks)
            for block in blocks
        ]

    def _rectangle(self, region: Region, core: int, block: OutputBlock) -> Rectangle:
        weights, part = region.plan.weights, self._index(region)
        shape = len(weights.slices), region.plan.rows, block.n.size
        start = region.offsets[core] + block.offset
        sums = self._c[core].window(start, start + 4 * math.prod(shape)).view(weights.format.out)
        w = region.part.scales[block.n.start : block.n.end]
        return Rectangle(
            sums.reshape(shape), self._scales[part], w, region.weight, block.n.start, part > 0
        )

    def free(self) -> None:
        """Free the memory of the program."""
        self._job.free()


def _regions(weights: Sequence[RkPacked], rows: int) -> tuple[list[Region], list[int]]:
    """Place the results of all parts of all weights; return the regions and each core's C size."""
    parts = [(index, part) for index, weight in enumerate(weights) for part in weight.parts]
    plans = [plan(part.plan, rows, Layout.ROW) for _, part in parts]
    offsets, sizes = result_offsets(plans)
    placed = zip(parts, plans, offsets, strict=True)
    return [Region(*which, tiles, at) for which, tiles, at in placed], sizes


def _to_float16(x: F32, halves: npt.NDArray[Any], scales: F32, first: int) -> None:
    """Write the rows of x to *halves*, scaled into float16's range and padded with zeros."""
    scales[:] = float16_scales(x, first)
    halves[:, x.shape[1] :] = 0
    halves[:, : x.shape[1]] = x / scales[:, None]
