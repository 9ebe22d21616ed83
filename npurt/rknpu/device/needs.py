"""Compute the limits of a job: rows that finish before the timeout, and work memory."""

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from npurt.device.device import Use
from npurt.rknpu.device.quantise import Scheme, column_groups, default_scheme
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.plan.cost import CLOCKS, SPEEDS, task_seconds, tasks_of
from npurt.rknpu.plan.tiling import LINE, ProductPlan, WeightPlan, padded, plan, plan_weights

FEW_ROWS = 16  # rows that fit the time limit with the weights of all supported models


@functools.lru_cache(maxsize=1024)
def rows_within(seconds: float, weights: tuple[WeightPlan, ...], passes: int, maximum: int) -> int:
    """Return the number of rows that a job with *weights* computes within *seconds*, with rocket.

    The result is *maximum*, halved until the job fits or has `FEW_ROWS`.  Each row is *passes* rows
    of a task.  The time is the slowest estimate, at the NPU's clock with rocket.
    """
    slowest, clock_hz = SPEEDS["rocket"].high, CLOCKS["rocket"]
    while maximum > FEW_ROWS:
        work = tasks_of([plan(each, maximum * passes, Layout.ROW) for each in weights])
        if max(task_seconds(work, slowest, chained=False, clock_hz=clock_hz)) <= seconds:
            break
        maximum //= 2
    return maximum


class Need(NamedTuple):
    """The memory that a job needs besides its weights."""

    features: int  # bytes of A, which each core reads
    results: tuple[int, ...]  # bytes of C for each core
    tasks: tuple[int, ...]  # number of tasks for each core


def needs_of(uses: Sequence[Use], rows: int, cores: int, seconds: float) -> list[Need]:
    """Return the needs of the jobs of *uses*, for one row and for the largest number of rows.

    Each weight is assumed to have the default scheme.

    Args:
        rows: Upper bound of the rows of a job.
        seconds: As in `rows_within`.
    """
    calls: dict[tuple[str, bool], list[Use]] = {}
    for use in uses:
        calls.setdefault((use.call, use.int16), []).append(use)
    found = []
    for (_, int16), together in calls.items():
        scheme = default_scheme(int16=int16)
        parts = [weight_plans(scheme, use.op.n, use.op.k, cores) for use in together]
        maximum = min(rows, max(use.op.m for use in together))
        maximum = rows_within(seconds, tuple(itertools.chain(*parts)), scheme.passes, maximum)
        found += [need_of(parts, scheme.passes * count) for count in sorted({1, maximum})]
    return found


def need_of(weights: Sequence[Sequence[WeightPlan]], stacked: int) -> Need:
    """Return the need of a job that multiplies one x by several weights.

    Args:
        weights: The plans of the parts of each weight.
        stacked: Rows of the tasks.
    """
    plans = [[plan(part, stacked, Layout.ROW) for part in parts] for parts in weights]
    every = list(itertools.chain(*plans))
    features = sum(padded(part.a_bytes, LINE) for part in plans[0])
    return Need(features, tuple(result_offsets(every)[1]), tuple(map(len, tasks_of(every))))


def weight_plans(scheme: Scheme, n: int, k: int, cores: int) -> list[WeightPlan]:
    """Return a plan for each part of K of a weight ``[N, K]`` that *scheme* quantises."""
    widths = [columns.stop - columns.start for columns in column_groups(k, scheme.group)]
    return [plan_weights(number_format(scheme.task), n, width, cores=cores) for width in widths]


def result_offsets(plans: Sequence[ProductPlan]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the offset of each plan's results in each core's C, and the size of each C."""
    offsets = []
    ends: list[int] = []
    for each in plans:
        ends += [0] * (len(each.c_bytes) - len(ends))
        offsets.append(tuple(ends[: len(each.c_bytes)]))
        for core, size in enumerate(each.c_bytes):
            ends[core] += padded(size, LINE)
    return offsets, ends
