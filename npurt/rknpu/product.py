"""A prepared product: weights that share an input, for one number of rows, as one job.

Its program is proven and loaded once.  Then a run is: round x into the NPU's memory, submit, scale
what it wrote.  Nothing of it is built again.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.device import F32
from npurt.rknpu.driver import Driver, Job, Work
from npurt.rknpu.host import rescale, round_rows
from npurt.rknpu.layout import Bytes, Layout
from npurt.rknpu.memory import Buffer
from npurt.rknpu.numerics import half_scales
from npurt.rknpu.plan import LINE, Plan, padded, plan
from npurt.rknpu.task import Task
from npurt.rknpu.weights import PartOnNpu, RkPacked


class Region(NamedTuple):
    """Where the results of one part of one weight are, core by core."""

    weight: int
    part: PartOnNpu
    plan: Plan
    offsets: tuple[int, ...]  # in the C of each core


Take = Callable[[str, int, int], Buffer]  # (use, core, bytes) -> a buffer at least that large


class Product:
    """``x @ w.T`` for each of *weights*, which have one K and one scheme, and *rows* rows of x."""

    def __init__(self, driver: Driver, weights: Sequence[RkPacked], rows: int, take: Take) -> None:
        self._driver = driver
        self._parts = [tuple(w.parts) for w in weights]  # not the weights, which may go
        self._scheme = weights[0].scheme
        self._rows = rows
        stacked = rows * self._scheme.passes
        item = 1 if self._scheme.task == "int8" else 2
        self._a_offsets: list[int] = []
        end = 0
        for part in weights[0].parts:
            self._a_offsets.append(end)
            end += padded(stacked * part.kp * item, LINE)
        self._regions, sizes = _regions(weights, stacked)
        cores = range(len(sizes))
        shared = len(driver.spaces) > 1 and driver.spaces[0] is driver.spaces[-1]
        self._a = [take("A", 0 if shared else core, end) for core in cores]
        self._inputs = self._a[:1] if shared else self._a
        self._c = [take("C", core, size) for core, size in zip(cores, sizes, strict=True)]
        self._scales = np.empty((len(self._a_offsets), rows), np.float32)
        self._job: Job = driver.prepare([self._work(core) for core in cores])

    def _work(self, core: int) -> Work:
        """List the tasks of one core with their addresses."""
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
        return Work(tasks, addresses)

    def _index(self, region: Region) -> int:
        return self._parts[region.weight].index(region.part)

    def run(self, x: F32, outs: Sequence[F32]) -> None:
        """Multiply: x ``[rows, K]``, and an out ``[rows, N]`` for each weight.

        Raises:
            NumericsError: x holds NaN or infinity.
            DriverError: The NPU failed.
        """
        self._write(x)
        self._driver.run(self._job)
        self._read(outs)

    def _write(self, x: F32) -> None:
        with self._inputs[0].cpu_access(write=True) as memory:
            for i, part in enumerate(self._parts[0]):
                target = memory[self._a_offsets[i] :]
                if self._scheme.task == "int8":
                    self._round(x, part, target, self._scales[i])
                else:
                    _halve(x[:, part.columns], part.kp, target, self._scales[i])
        for other in self._inputs[1:]:
            with (
                other.cpu_access(write=True) as copy,
                self._inputs[0].cpu_access(write=False) as memory,
            ):
                size = min(len(copy), len(memory))
                copy[:size] = memory[:size]

    def _round(self, x: F32, part: PartOnNpu, target: Bytes, scales: F32) -> None:
        passes, kp = self._scheme.passes, part.kp
        codes = target[: passes * self._rows * kp].view(np.int8).reshape(-1, kp)
        round_rows(
            x[:, part.columns], codes, scales, signs=part.signs, block=part.block, passes=passes
        )

    def _read(self, outs: Sequence[F32]) -> None:
        for region in self._regions:
            first = self._index(region) == 0
            scales = self._scales[self._index(region)]
            for core, blocks in enumerate(region.plan.blocks):
                with self._c[core].cpu_access(write=False) as memory:
                    for block in blocks:
                        start = region.offsets[core] + block.offset
                        shape = len(region.plan.weights.slices), region.plan.rows, block.n.size
                        sums = memory[start : start + 4 * int(np.prod(shape))].view(
                            region.plan.weights.form.out
                        )
                        columns = slice(block.n.start, min(block.n.end, region.plan.weights.n))
                        self._scale(
                            sums.reshape(shape), scales, region.part.scales[columns],
                            outs[region.weight][:, columns], add=not first,
                        )  # fmt: skip

    def _scale(self, sums: npt.NDArray[Any], scales: F32, w: F32, out: F32, *, add: bool) -> None:
        total = sums[0] if len(sums) == 1 else sums.sum(axis=0, dtype=sums.dtype)
        if self._scheme.task == "int8":
            rescale(total, scales, w, out, passes=self._scheme.passes, add=add)
            return
        result = total[: self._rows, : len(w)] * scales[:, None] * w
        np.add(out, result, out=out) if add else np.copyto(out, result)

    def free(self) -> None:
        """Give the program's memory back."""
        self._job.free()


def _regions(weights: Sequence[RkPacked], rows: int) -> tuple[list[Region], list[int]]:
    """Place the results of all parts of all weights; return them and the size of C by core."""
    regions = []
    ends: list[int] = []
    for index, weight in enumerate(weights):
        for part in weight.parts:
            tiles = plan(part.plan, rows, Layout.ROW)
            ends += [0] * (len(tiles.c_bytes) - len(ends))
            offsets = tuple(ends[: len(tiles.c_bytes)])
            for core, size in enumerate(tiles.c_bytes):
                ends[core] += padded(size, LINE)
            regions.append(Region(index, part, tiles, offsets))
    return regions, ends


def _halve(x: F32, kp: int, target: Bytes, scales: F32) -> None:
    """Write x as float16 rows of *kp*, scaled into its range."""
    scales[:] = half_scales(x)
    halves = target[: 2 * len(x) * kp].view(np.float16).reshape(-1, kp)
    halves[:, x.shape[1] :] = 0
    halves[:, : x.shape[1]] = x / scales[:, None]
