"""The thread pool, and the programs it runs.

An op is a C struct that says what to do with which memory; a `Program` is an array of them, built
once and run once per token or batch.  Everything a program points to is kept alive by it.
"""

import atexit
import os
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.cpu.kernels import abi
from npurt.cpu.pool.memory import allocate
from npurt.cpu.pool.table import RowTable
from npurt.cpu.pool.topology import threads_to_use, topology
from npurt.errors import DriverError, NpurtError, UnsupportedOp
from npurt.quant.activations import GROUP

F32 = npt.NDArray[np.float32]


def empty(rows: int, columns: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Return zeroed, page-aligned ``[rows, columns]`` that costs memory only when touched."""
    nbytes = rows * columns * np.dtype(dtype).itemsize
    return allocate(nbytes)[:nbytes].view(dtype).reshape(rows, columns)


def pointer(ctype: str, array: npt.NDArray[Any]) -> Any:
    """Return the address of *array* as a *ctype*; the caller keeps the array alive."""
    return abi.ffi().cast(ctype, array.ctypes.data)


class Input:
    """One input of matmuls: `values` float32 ``[rows, K]``, and codes where weights are integers.

    What writes the values of a *quantised* input writes its codes and their scales and sums too.
    An *int16* input has a second set of codes for the remainders of the first, in steps of 1/255:
    16 bits of precision for twice the products of integers.  Each of its blocks has both sets.

    Args:
        values: The memory of the values; by default its own.
    """

    def __init__(
        self, rows: int, k: int, *, quantised: bool, int16: bool = False, values: F32 | None = None
    ) -> None:
        self.rows = rows
        self.k = k
        self.values: F32 = empty(rows, k) if values is None else values
        self.quantised = quantised
        if quantised:
            self.codes: npt.NDArray[np.int8] = empty(rows, k, np.int8)
            block = abi.ffi().sizeof("npurt_block")
            self.blocks: npt.NDArray[np.uint8] = empty(rows, k // GROUP * block, np.uint8)
        self.int16 = quantised and int16
        if self.int16:
            self.remainders: npt.NDArray[np.int8] = empty(rows, k, np.int8)

    def numbers(self, rows: slice) -> npt.NDArray[np.float64]:
        """Return *rows* as products see them: values, or codes times their scales, exact."""
        if not self.quantised:
            return self.values[rows].astype(np.float64)
        codes = self.codes[rows].astype(np.float64)
        if self.int16:
            codes = abi.lib().NPURT_REMAINDER_STEPS * codes + self.remainders[rows]
        step = abi.ffi().sizeof("npurt_block") // 4  # a block begins with its scale
        scales = self.blocks[rows].view(np.float32)[:, ::step].astype(np.float64)
        return codes * np.repeat(scales, GROUP, axis=1)

    def fill(self, struct: Any) -> None:
        """Write the addresses into the npurt_input *struct*."""
        struct.values = pointer("float *", self.values)
        struct.k = self.k
        if self.quantised:
            struct.codes = pointer("int8_t *", self.codes)
            struct.blocks = pointer("npurt_block *", self.blocks)
        if self.int16:
            struct.remainders = pointer("int8_t *", self.remainders)


class Engine:
    """The threads of one CPU device.  One run at a time: other threads wait.

    They end when the engine is closed, or with its last reference.  After a fork the child has no
    threads but its own: it gets new ones when it first runs.

    When a run has returned, no thread touches its inputs and outputs any more, but a late thread
    may still read weights.  So the objects of a dropped program are released when no thread is
    inside a run: see `retire`.
    """

    def __init__(self, threads: int | None = None, isa: str = "") -> None:
        self.isa = abi.isa(isa)  # opens the library, which machines without Linux do not have
        self._here = topology()
        self.isa_name = next(name for name, i in abi.isas().items() if i == self.isa)
        self.threads = threads_to_use(threads, self._here)
        self._retired: list[object] = []  # what dropped programs kept
        self._start()
        _ENGINES.add(self)

    def _start(self) -> None:
        cpus = self._here.cpus if self._here.pinned else ()
        array = abi.ffi().new("int32_t[]", list(cpus))
        self._pool = abi.lib().npurt_pool_new(self.threads, array, len(cpus))
        if self._pool == abi.ffi().NULL:
            raise NpurtError(
                f"no memory for a pool of {self.threads} threads",
                remedy="close other programs, or ask for fewer threads with -t",
            )
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._free = weakref.finalize(self, _free, self._pool, self._process)
        self._free.atexit = False  # threads end with the process, whatever they do

    def locked(self) -> "Locked":
        """Return a context manager that yields the pool, and keeps other threads away from it."""
        return Locked(self)

    def acquire(self) -> Any:
        """Keep other threads away from the pool until `release`, and return it.

        Raises:
            NpurtError: The engine is closed.
        """
        if self._process != os.getpid() and self._pool is not None:
            self._start()
        self._lock.acquire()
        if self._pool is None:
            self.release()
            raise NpurtError("the CPU device is closed", remedy="open it again")
        return self._pool

    def release(self) -> None:
        """Let other threads use the pool, and release the memory of dropped programs."""
        self._lock.release()
        if self._retired:
            self._release()

    def run(self, ops: Any, count: int, table: RowTable) -> int:
        """Run *count* ops; return how many ran before one did not verify (all: *count*)."""
        with self.locked() as pool:
            done = int(abi.lib().npurt_run(pool, ops, count, table.struct))
            if done == abi.lib().NPURT_REFUSED:
                why = bytes(abi.ffi().string(abi.lib().npurt_pool_why(pool))).decode()
                raise UnsupportedOp(
                    f"the CPU kernels cannot run {count} ops on {table.rows} rows: {why}",
                    remedy="use a model or arrays of sizes that the kernels take",
                )
        if done < 0:
            raise DriverError(
                f"no memory to run {count} ops",
                remedy="close other programs, or use a smaller context",
                call="npurt_run",
                code=done,
            )
        return done

    def settle(self) -> None:
        """Wait until no thread can read the weights of a finished run any more."""
        if self._pool is not None:
            with self.locked() as pool:
                abi.lib().npurt_pool_settle(pool)

    def retire(self, kept: object) -> None:
        """Keep the memory of a dropped program until no thread can read it any more.

        It never waits for a run of another thread, which releases the memory at its end.
        """
        self._retired.append(kept)
        self._release()

    def _release(self) -> None:
        """Release the memory of dropped programs, unless another thread has the lock and will."""
        while self._retired and self._lock.acquire(blocking=False):
            try:
                if self._pool is not None:
                    abi.lib().npurt_pool_settle(self._pool)
                self._retired.clear()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Stop the threads.  A second call does nothing."""
        if self._pool is not None:
            with self.locked():
                self._pool = None
                self._free()


class Locked:
    """The lock of an engine, with ``with``."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> Any:
        """Take it, and return the pool; errors are those of `Engine.acquire`."""
        return self._engine.acquire()

    def __exit__(self, *error: object) -> None:
        self._engine.release()


_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _settle() -> None:
    """Wait until late threads read no weights: the interpreter frees these at its end."""
    for engine in tuple(_ENGINES):
        engine.retire(None)


def _free(pool: Any, process: int) -> None:
    if os.getpid() == process:  # a fork has no such threads
        abi.lib().npurt_pool_free(pool)
