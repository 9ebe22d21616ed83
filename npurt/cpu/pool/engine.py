"""The thread pool of a CPU device, and the inputs of its matrix products.

An op is a C struct with a kind, sizes and addresses of buffers.  A `Program` is an array of ops,
built once and run once per token or batch.  A program keeps alive all buffers that its ops use.
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
    """Return a zeroed array ``[rows, columns]``, large ones in pages allocated on first access."""
    nbytes = rows * columns * np.dtype(dtype).itemsize
    return allocate(nbytes)[:nbytes].view(dtype).reshape(rows, columns)


def pointer(ctype: str, array: npt.NDArray[Any]) -> Any:
    """Return the address of *array* as a *ctype*; the caller must keep the array alive."""
    return abi.ffi().cast(ctype, array.ctypes.data)


class Input:
    """The input of matmuls: `values` float32 ``[rows, K]``, and int8 codes if *quantised*.

    Weights of integers need a *quantised* input: an op that writes its values also writes their
    codes, and the scales and sums of the blocks.  An *int16* input has a second int8 code per value
    for the rounding error of the first, in steps of 1/255 of the scale.  It has 16 bits of
    precision, and needs twice as many integer products.

    Args:
        values: The array to use as `values`; by default a new one.
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
        """Return the exact numbers that are multiplied: values, or codes times their scales."""
        if not self.quantised:
            return self.values[rows].astype(np.float64)
        codes = self.codes[rows].astype(np.float64)
        if self.int16:
            codes = abi.lib().NPURT_REMAINDER_STEPS * codes + self.remainders[rows]
        step = abi.ffi().sizeof("npurt_block") // 4  # a block begins with its scale
        scales = self.blocks[rows].view(np.float32)[:, ::step].astype(np.float64)
        return codes * np.repeat(scales, GROUP, axis=1)

    def fill(self, struct: Any) -> None:
        """Write the buffers' addresses and K to the npurt_input *struct*."""
        struct.values = pointer("float *", self.values)
        struct.k = self.k
        if self.quantised:
            struct.codes = pointer("int8_t *", self.codes)
            struct.blocks = pointer("npurt_block *", self.blocks)
        if self.int16:
            struct.remainders = pointer("int8_t *", self.remainders)


class CpuThreadPool:
    """The thread pool of one CPU device.  It runs one program at a time; other callers wait.

    The pool's threads end when the engine is closed, or when the last reference to it is dropped.
    A forked child does not inherit the pool's threads; its first run starts new ones.

    After a run has returned, no thread accesses its inputs and outputs, but a thread that has not
    left the run may still read weights.  So the memory of a dropped program is freed when no thread
    is inside a run: see `retire`.

    As a context manager, it locks the pool.
    """

    def __init__(self, threads: int | None = None, isa: str = "") -> None:
        self.isa = abi.isa(isa)  # opens the library, which machines without Linux do not have
        self._here = topology()
        self.isa_name = next(name for name, i in abi.isas().items() if i == self.isa)
        self.threads = threads_to_use(threads, self._here)
        self._retired: list[object] = []  # buffers of dropped programs, until no thread reads them
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
        self._free.atexit = False  # no need to join threads when the process exits

    def __enter__(self) -> Any:
        """Lock the pool, and return it.

        Raises:
            NpurtError: The engine is closed.
        """
        if self._process != os.getpid() and self._pool is not None:
            self._start()
        self._lock.acquire()
        if self._pool is None:
            self.__exit__()
            raise NpurtError("the CPU device is closed", remedy="open it again")
        return self._pool

    def __exit__(self, *error: object) -> None:
        """Unlock the pool, and free the memory of dropped programs."""
        self._lock.release()
        if self._retired:
            self._release()

    def run(self, ops: Any, count: int, table: RowTable) -> int:
        """Run *count* ops; return the index of the first that fails verification, else *count*."""
        with self as pool:
            done = int(abi.lib().npurt_run(pool, ops, count, table.struct))
            if done == abi.lib().NPURT_REFUSED:
                why = bytes(abi.ffi().string(abi.lib().npurt_pool_why(pool))).decode()
                raise UnsupportedOp(
                    f"the CPU kernels cannot run {count} ops on {table.rows} rows: {why}",
                    remedy="use a model or arrays of sizes that the kernels support",
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
        """Wait until no thread reads the weights of a finished run."""
        if self._pool is not None:
            with self as pool:
                abi.lib().npurt_pool_settle(pool)

    def retire(self, retired: object) -> None:
        """Keep *retired*, the memory of a dropped program, until no thread reads it.

        This does not wait for a run of another thread; that thread frees the memory after its run.
        """
        self._retired.append(retired)
        self._release()

    def _release(self) -> None:
        """Free the memory of dropped programs, unless another thread holds the lock.

        The other thread frees it when it unlocks the pool.
        """
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
            with self:
                self._pool = None
                self._free()


_ENGINES: weakref.WeakSet[CpuThreadPool] = weakref.WeakSet()


@atexit.register
def _settle() -> None:
    """Wait at exit until no thread reads weights, because the interpreter then frees them."""
    for engine in tuple(_ENGINES):
        engine.retire(None)


def _free(pool: Any, process: int) -> None:
    if os.getpid() == process:  # a forked child has no threads of this pool
        abi.lib().npurt_pool_free(pool)
