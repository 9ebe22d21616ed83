"""Run a job by one call into C; the structs of `npurt_rk.h` are made once and run many times."""

import functools
import os
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.errors import NpurtError
from npurt.rknpu.driver.native.host import I8, at, ffi, lib
from npurt.rknpu.driver.uapi_drm import Ioctl

U8 = npt.NDArray[np.uint8]

INTERRUPTIONS = 1000  # attempts of a request that signals interrupt


class IoctlCall(NamedTuple):
    """A request with its struct."""

    fd: int
    request: Ioctl
    argument: Any  # pointer to the struct
    until: Any = None  # pointer to the deadline in the struct, or None


class CoreQueue(NamedTuple):
    """The requests of one core: submit, then wait.  With rknpu, one queue serves all cores."""

    starts: Sequence[IoctlCall]  # the last one submits
    ends: Sequence[IoctlCall]
    copy: U8 | None = None  # the core's own copy of x; None if it reads the first queue's x


class Target(NamedTuple):
    """The destination of some columns of x after rounding; see `npurt_rk_part`."""

    columns: slice
    block: int
    signs: I8 | None
    codes: I8  # [passes * M, Kp]
    scales: F32  # [M]


class Rectangle(NamedTuple):
    """The sums that one core wrote for some columns of one weight; see `npurt_rk_block`."""

    sums: npt.NDArray[Any]  # [slices, passes * M, columns], int32 or float32
    scales: F32  # [M], scales of x
    w: F32  # [N], scales of the weight; columns beyond N are padding
    y: int  # index of the result
    first: int  # first column in the result
    add: bool  # whether to add to the result or to overwrite it


class ThreadPool:
    """Threads that run queues in parallel, until the pool is closed or garbage-collected.

    Args:
        threads: Number of threads.  The caller runs the first queue, each thread another.

    Raises:
        NpurtError: The system cannot start the threads.
    """

    def __init__(self, threads: int) -> None:
        self.handle = lib().npurt_rk_pool_start(threads)
        if not self.handle:
            raise NpurtError(
                f"cannot start {threads} threads: {os.strerror(ffi().errno)}",
                remedy="close other programs, or unset NPURT_ROCKET_THREADS",
            )
        self.close = weakref.finalize(self, _stop, self.handle, os.getpid())
        self.close.atexit = False


def _stop(pool: Any, process: int) -> None:
    if os.getpid() == process:  # a forked process does not have the threads
        lib().npurt_rk_pool_stop(pool)


class NativeRun:
    """A job for `npurt_rk_run`.  Without `bind`, inputs and results are only in the NPU's buffers.

    Args:
        queues: The queue of each core.
        sentinel: Bytes that cannot be a result.
        places: Memory to which the run writes the sentinel, and which the NPU has to overwrite.
        a: The memory from which the first queue's core reads x.
        pool: The threads that run the queues; None if the caller's thread runs them.
    """

    def __init__(
        self,
        queues: Sequence[CoreQueue],
        sentinel: bytes = b"",
        places: Sequence[U8] = (),
        a: U8 | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        self.names = [
            [call.request.name for call in (*queue.starts, *queue.ends)] for queue in queues
        ]
        self.first = 0  # number of the first row of x, for errors
        self._address = functools.partial(ffi().from_buffer, ffi().typeof("float[]"))
        self._y: Any = ffi().NULL
        self._owned: list[Any] = [queues, places, a, pool]
        self.table = ffi().new("npurt_rk_job *", {
            "queues": self._array("npurt_rk_queue[]", [self._queue(queue) for queue in queues]),
            "queue_count": len(queues),
            "pool": ffi().NULL if pool is None else pool.handle,
            "a": ffi().NULL if a is None else at("void *", a),
            "a_bytes": 0 if a is None else a.nbytes,
            "sentinels": self._array("void *[]", [at("void *", place) for place in places]),
            "sentinel_count": len(places),
            "sentinel": self._array("char[]", sentinel),
            "sentinel_bytes": len(sentinel),
            "tries": INTERRUPTIONS,
        })  # fmt: skip

    def _array(self, kind: str, values: Any) -> Any:
        """Return a C array that lives as long as the run."""
        self._owned.append(ffi().new(kind, values))
        return self._owned[-1]

    def _queue(self, queue: CoreQueue) -> dict[str, Any]:
        requests = [
            {
                "fd": call.fd,
                "number": call.request.number,
                "argument": ffi().cast("void *", call.argument),
                "until": ffi().cast("int64_t *", call.until or 0),
            }
            for call in (*queue.starts, *queue.ends)
        ]
        return {
            "requests": self._array("npurt_rk_request[]", requests),
            "starts": len(queue.starts),
            "count": len(requests),
            "copy": ffi().NULL if queue.copy is None else at("void *", queue.copy),
        }

    def add_quantise(self, targets: Sequence[Target], k: int) -> None:
        """Add a first step to the job, which rounds x ``[M, k]`` into *targets*."""
        scratch = np.empty(max(t.codes.shape[1] for t in targets), np.float32)
        parts = [
            {
                "signs": ffi().NULL if t.signs is None else at("int8_t *", t.signs),
                "codes": at("int8_t *", t.codes),
                "scales": at("float *", t.scales),
                "first": t.columns.start,
                "k": t.columns.stop - t.columns.start,
                "kp": t.codes.shape[1],
                "block": t.block,
            }
            for t in targets
        ]
        self._owned += [targets, scratch]
        self.table.parts = self._array("npurt_rk_part[]", parts)
        self.table.part_count = len(parts)
        self.table.pitch = k
        self.table.scratch = at("float *", scratch)
        self._shape(len(targets[0].scales), len(targets[0].codes))

    def add_scaling(self, rectangles: Sequence[Rectangle], widths: Sequence[int]) -> None:
        """Add a last step to the job: scale *rectangles* into results of *widths* columns."""
        blocks = [
            {
                "sums": at("void *", r.sums),
                "w": at("float *", r.w),
                "scales": at("float *", r.scales),
                "slice": r.sums.strides[0] // 4,
                "slices": len(r.sums),
                "columns": r.sums.shape[2],
                "n": len(r.w),
                "y": r.y,
                "first": r.first,
                "add": int(r.add),
            }
            for r in rectangles
        ]
        self._owned.append(rectangles)
        self._y = self._array("float *[]", len(widths))
        self.table.y_pitch = self._array("int64_t[]", widths)
        self.table.blocks = self._array("npurt_rk_block[]", blocks)
        self.table.block_count = len(blocks)
        self.table.floats = int(rectangles[0].sums.dtype == np.float32)
        self._shape(len(rectangles[0].scales), rectangles[0].sums.shape[1])

    def _shape(self, rows: int, stacked: int) -> None:
        self.table.rows = rows
        self.table.passes = stacked // rows

    def bind(self, x: F32, outs: Sequence[F32], first: int = 0) -> None:
        """Set x and the results, float32 in C order.  The caller keeps both alive.

        In errors, *first* is the number of the first row of x.
        """
        self.first = first
        self.table.x = self._address(x)
        self.table.y = self._y
        for i, out in enumerate(outs):
            self._y[i] = self._address(out)
