"""Define jobs, and the interface that both drivers implement."""

import abc
import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from npurt.errors import DeviceLost, DeviceTimeout, DriverError, LayoutError
from npurt.rknpu.driver.memory import Buffer, Space, Suballocation
from npurt.rknpu.driver.native.run import CoreQueue, IoctlCall, NativeRun, ThreadPool
from npurt.rknpu.driver.uapi_rocket import JOB_TIMEOUT_S
from npurt.rknpu.isa.formats import ATOM
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import ALIGNMENT, U64, chain, link, stride
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.cost import CLOCKS, SPEEDS, task_seconds
from npurt.rknpu.plan.proof import Proof, Role, prove

# Timeout of a job: MARGIN times the expected time (for slower clocks, shared memory) plus GRACE_S.
MARGIN = 20
GRACE_S = JOB_TIMEOUT_S
ATTEMPTS = 2  # attempts to run a job, with a reset between them

# Written to the last result of a job before the run, and checked after it.  No sum of int8 products
# is so large.  As float32 or float16 it is a NaN that arithmetic does not produce.
SENTINEL = bytes.fromhex("a5a5a57f") * (ATOM // 4)


class CoreTasks(NamedTuple):
    """The tasks of one core, and the addresses of A, B and C of each task."""

    tasks: Sequence[Task]
    addresses: Sequence[tuple[int, int, int]]


class Repeats(NamedTuple):
    """The number of repeated jobs, and the cause of the last repetition."""

    times: int
    cause: str


class MemoryRequest(NamedTuple):
    """Memory to allocate in an address space; see `Space.suballocate`."""

    space: Space
    nbytes: int
    role: Role
    name: str
    step: int


Input = tuple[Buffer, int]  # a buffer and the number of bytes used


@dataclass(frozen=True, slots=True)
class CorePart:
    """One core's part of a job, with the proof of its program."""

    program: Suballocation
    count: int  # number of tasks
    proof: Proof
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    @property
    def last(self) -> tuple[Buffer, int]:
        """The buffer and the offset of the last atom that the part writes."""
        end = int(self.proof.results[-1, 1])
        for buffer in self.writes:
            if buffer.address < end <= buffer.address + buffer.nbytes:
                return buffer, end - ATOM - buffer.address
        raise AssertionError("the proof names the buffer of each result")


class Job:
    """A prepared job, whose program is in the NPU's memory until `free`.

    Args:
        parts: The part of each core.
        queues: The requests of each core.
        inputs: As in `Driver.prepare`.
        pool: The threads that run the queues; None if the caller's thread runs them.
        owned: The memory that `Driver.commands` returned; `free` frees it.
        held: Objects that the structs point to; the job keeps them alive.
    """

    def __init__(
        self,
        parts: Sequence[CorePart],
        queues: Sequence[CoreQueue],
        inputs: Sequence[Input] = (),
        pool: ThreadPool | None = None,
        owned: Sequence[Suballocation] = (),
        held: Sequence[Any] = (),
    ) -> None:
        self.parts = tuple(parts)
        marked = [buffer.window(at, at + ATOM) for buffer, at in end_atoms(parts)]
        a = inputs[0][0].window(0, inputs[0][1]) if inputs else None
        self.run = NativeRun(queues, SENTINEL, marked, a, pool)
        self._owned = tuple(owned)
        self.held = held
        self.max_s = 0.0  # upper bound of the timeout
        self.repeated = ""  # the error after which the job was repeated; "" if it was not
        self.timeout_s = 0.0  # the timeout in the structs
        self._spaces = tuple(dict.fromkeys(part.program.space for part in parts))
        self.freed = self._freed()

    def _freed(self) -> int:
        count = 0
        for space in self._spaces:
            count += space.freed
        return count

    def check(self) -> None:
        """Check that the buffers of the proof still exist.

        Raises:
            LayoutError: A buffer of the job was freed.
        """
        if self._freed() == self.freed:
            return
        for part in self.parts:
            used: tuple[Buffer | Suballocation, ...] = (part.program, *part.reads, *part.writes)
            for each in used:
                if not each.alive:
                    raise LayoutError(
                        f"a job uses buffer {each.name}, which was freed",
                        remedy="prepare the job again, with allocated buffers",
                    )
        self.freed = self._freed()

    def free(self) -> None:
        """Free the memory of the program."""
        for each in self._owned:
            each.free()


def end_atoms(parts: Sequence[CorePart]) -> list[tuple[Buffer, int]]:
    """Return the buffer and offset of the last atom that each part writes."""
    return [part.last for part in parts]


class Driver(abc.ABC):
    """An opened NPU.  Not thread-safe.

    Attributes:
        deadline_s: Longest time of a job, in seconds.
        planned_s: Longest time of a job with many rows, by the cost model's slowest estimate.
        repeats: Repetitions of all jobs so far.
        jobs: Number of jobs submitted so far, with repetitions.
        name: The name of the kernel's driver.
        detail: Version and node, for reports.
        spaces: The address space of each core.
        chained: Whether each task of a program starts the next.
        profile: The profile of the programs that `prepare` makes.
    """

    deadline_s = math.inf
    planned_s = math.inf
    repeats = Repeats(0, "")
    jobs = 0
    name: str
    detail: str
    spaces: tuple[Space, ...]
    chained: bool
    profile = Profile.FULL  # runs under both drivers

    def more_spaces(self) -> tuple[Space, ...]:
        """Return additional address spaces, one for each core, or none if the driver has no more.

        A job uses either `spaces` or the spaces of one call of this method.
        """
        return ()

    def prepare(
        self,
        cores: Sequence[CoreTasks],
        inputs: Sequence[Input] = (),
        *,
        spaces: Sequence[Space] = (),
        make_space: Callable[[], bool] = lambda: False,
    ) -> Job:
        """Prove the programs of a job, load them to the NPU's memory, and return the job.

        Args:
            cores: The tasks of each core, core 0 first.
            inputs: The buffer A of the first core.  Before each run the caller writes it through
                its `window`, or the run rounds x into it.  If each core has a separate address
                space, the buffers A of the other cores follow; the run copies the first to them.
            spaces: The address space of each core, by default `spaces` of the driver.
            make_space: See `Space.suballocate`; called if the programs do not fit.

        Raises:
            LayoutError: A task does not fit its buffers, or the NPU.
            DeviceFull: The NPU has no memory for the programs.
        """
        spaces = spaces or self.spaces
        if not 0 < len(cores) <= len(spaces) or not all(core.tasks for core in cores):
            raise LayoutError(
                f"a job was asked for {len(cores)} cores, with "
                f"{[len(core.tasks) for core in cores]} tasks on each",
                remedy=f"give at least one task to each of 1 to {len(spaces)} cores",
            )
        patience = self._patience(self._expected([core.tasks for core in cores]))
        allocated = self.commands(spaces, [len(core.tasks) for core in cores], make_space)
        job = self._load(allocated, inputs, lambda core, at: self._link(cores[core], at))
        job.max_s = min(patience, self.deadline_s)
        return job

    def prepare_words(self, words: U64, profile: Profile) -> Job:
        """Return a job for a finished program, which runs on the first core.

        Args:
            words: The program ``[T, stride]``; this method replaces its tails, which depend on how
                the driver starts tasks.
            profile: The profile of the words.

        Raises:
            LayoutError: The proof of the program failed.
            DeviceFull: The NPU has no memory for the program.
        """

        def chained(_core: int, at: int | None) -> U64:
            chain(words, profile, at)
            return words

        usual, self.profile = self.profile, profile
        try:
            job = self._load(self.commands(self.spaces[:1], [len(words)]), (), chained)
        finally:
            self.profile = usual
        job.max_s = self.deadline_s
        return job

    def _load(
        self,
        allocated: Sequence[Suballocation],
        inputs: Sequence[Input],
        words_of: Callable[[int, int | None], U64],
    ) -> Job:
        """Write the program of each core to the allocated memory, and return the job.

        Args:
            allocated: The result of `commands`.
            inputs: As in `prepare`.
            words_of: Called with a core and an address; returns the core's program.  With an
                address, each task starts the next; with None, the driver starts each task.
        """
        programs = [each for each in allocated if each.buffer.role is Role.PROGRAM]
        try:
            parts = []
            for core, program in enumerate(programs):
                at = program.address if self.chained else None
                parts.append(self._part(program, words_of(core, at)))
            return self._job(parts, inputs, allocated)
        except BaseException:
            for each in allocated:
                each.free()
            raise

    def _link(self, core: CoreTasks, at: int | None) -> U64:
        return link(core.tasks, core.addresses, profile=self.profile, chain_at=at)

    def _expected(self, cores: Sequence[Sequence[Task]]) -> float:
        """Return the expected seconds of the slowest core, by the cost model."""
        speed, clock_hz = SPEEDS[self.name].expected, CLOCKS[self.name]
        return max(task_seconds(cores, speed, chained=self.chained, clock_hz=clock_hz))

    def commands(
        self,
        spaces: Sequence[Space],
        tasks: Sequence[int],
        make_space: Callable[[], bool] = lambda: False,
    ) -> list[Suballocation]:
        """Allocate memory for the commands of a job with *tasks* tasks on each core.

        Returns:
            The memory of each core's program, then other memory that the driver needs.

        Raises:
            DeviceFull: The NPU has too little memory.
        """
        wanted = [
            MemoryRequest(
                space, count * stride(self.profile) * 8, Role.PROGRAM, "programs", ALIGNMENT
            )
            for space, count in zip(spaces, tasks, strict=False)
        ]
        allocated: list[Suballocation] = []
        try:
            for space, nbytes, role, name, step in (*wanted, *self._tables(spaces, tasks)):
                allocated.append(space.suballocate(nbytes, role, name, step, make_space))
        except BaseException:
            for each in allocated:
                each.free()
            raise
        return allocated

    def _tables(self, spaces: Sequence[Space], tasks: Sequence[int]) -> Sequence[MemoryRequest]:
        """Return the memory that the driver needs for a job besides the programs."""
        return ()

    def _part(self, program: Suballocation, words: U64) -> CorePart:
        space = program.space
        proof = prove(
            words,
            space.spans,
            at=program.address,
            chained=self.chained,
            profile=self.profile,
        )
        with program.write() as memory:
            memory.view("<u8")[:] = words.ravel()
        reads = tuple(space.at(span) for span in sorted(proof.reads))
        writes = tuple(space.at(span) for span in sorted(proof.writes))
        return CorePart(program, len(words), proof, reads, writes)

    def run(self, job: Job, timeout_s: float = math.inf) -> None:
        """Run *job* and wait for its end; then the CPU can read the results.

        If the job fails, or does not write its last result, it is repeated once after a reset.  The
        timeout of each attempt is the least of *timeout_s*, `deadline_s` and `_patience`.

        Raises:
            DeviceLost: The job failed twice, or the device is gone and has to be opened again.
            LayoutError: A buffer of the job was freed.
            NumericsError: The job rounds x, which holds NaN or infinity.
        """
        if not self.spaces[0].is_ours:
            raise DeviceLost(
                f"{self.detail} was closed, or opened before this process was forked",
                remedy="open the device in the process that uses it",
                call="SUBMIT",
                code=errno.EBADF,
            )
        job.check()
        timeout_s = min(timeout_s, job.max_s)
        for attempt in range(1, ATTEMPTS + 1):
            self.jobs += 1
            try:
                self._try(job, timeout_s)
            except DeviceLost:
                raise
            except DriverError as error:
                if attempt == ATTEMPTS:
                    raise DeviceLost(
                        f"a job failed {ATTEMPTS} times on {self.detail}: {error.what}",
                        remedy=error.remedy,
                        call=error.call,
                        code=error.code,
                    ) from error
                job.repeated = error.what
                self.repeats = Repeats(self.repeats.times + 1, error.what)
                self.reset()
            else:
                return

    def elapsed_ns(self, job: Job) -> int | None:
        """Return the NPU's time for the last run of *job*, or None if the driver has no timer."""
        return None

    def _try(self, job: Job, timeout_s: float) -> None:
        if job.timeout_s != timeout_s:
            self._set_timeout(job, timeout_s)
            job.timeout_s = timeout_s
        core = self.spaces[0].system.make(job.run)
        if core is not None:
            raise DeviceTimeout(
                f"core {core} ended a job without writing its result",
                remedy="read `dmesg` for 'NPU job timed out'; load the driver again",
                call="SUBMIT",
                code=0,
            )

    def _patience(self, seconds: float) -> float:
        """Return the timeout of a job whose expected time is *seconds*."""
        return GRACE_S + MARGIN * seconds

    @abc.abstractmethod
    def _job(
        self, parts: Sequence[CorePart], inputs: Sequence[Input], owned: Sequence[Suballocation]
    ) -> Job:
        """Return the job with its requests: clean caches, submit, wait, invalidate caches.

        The job owns the memory *owned*, a result of `commands`.
        """

    @abc.abstractmethod
    def _set_timeout(self, job: Job, timeout_s: float) -> None:
        """Write the timeout into the structs of *job*."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Reset the cores after a failure, if the driver supports it."""

    def close(self) -> None:
        """Release the device and every buffer.  A second call does nothing."""
        for space in self.spaces:
            space.close()


def input_cleans(parts: Sequence[CorePart], inputs: Sequence[Input]) -> Iterator[IoctlCall]:
    """Yield the calls that clean the caches of the inputs and of the sentinels."""
    for buffer, nbytes in inputs:
        yield from buffer.space.clean_calls(buffer, 0, nbytes)
    for buffer, at in end_atoms(parts):
        yield from buffer.space.clean_calls(buffer, at, at + ATOM)
