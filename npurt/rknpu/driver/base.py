"""Jobs, and the interface that both drivers implement."""

import abc
import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from npurt import moved
from npurt.errors import DeviceLost, DeviceTimeout, DriverError, LayoutError
from npurt.rknpu.driver.memory import Buffer, Space, Suballocation
from npurt.rknpu.driver.native.run import Call, CoreQueue, Run, ThreadPool
from npurt.rknpu.driver.uapi_rocket import JOB_TIMEOUT_S
from npurt.rknpu.isa.formats import ATOM
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import ALIGNMENT, U64, chain, link, stride
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.cost import CLOCKS, SPEEDS, task_seconds
from npurt.rknpu.plan.proof import Proof, Role, prove

MARGIN = 20  # times the expected time: for a slower clock, or memory that is shared
GRACE_S = JOB_TIMEOUT_S  # beyond that
ATTEMPTS = 2  # of a job, with a reset between

# Written where a job ends and looked for afterwards.  No sum of int8 products is so large, and as
# floats of either size it is a NaN that arithmetic does not make.
SENTINEL = bytes.fromhex("a5a5a57f") * (ATOM // 4)


__getattr__ = moved.attributes(__name__, {"Work": "npurt.rknpu.driver.base:CoreTasks"})


class CoreTasks(NamedTuple):
    """The tasks of one core, and the addresses of A, B and C of each task."""

    tasks: Sequence[Task]
    addresses: Sequence[tuple[int, int, int]]


class Repeats(NamedTuple):
    """How often jobs were repeated, and why the last one was."""

    times: int
    cause: str


class MemoryRequest(NamedTuple):
    """Memory to allocate in an address space; see `Space.suballocate`."""

    space: Space
    nbytes: int
    role: Role
    name: str
    step: int


Input = tuple[Buffer, int]  # how many bytes of it there are


@dataclass(frozen=True, slots=True)
class Part:
    """One core's part of a job, whose program was proven harmless."""

    program: Suballocation
    count: int  # of tasks
    proof: Proof
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    @property
    def last(self) -> tuple[Buffer, int]:
        """The buffer and offset of the last atom that it writes."""
        end = int(self.proof.results[-1, 1])
        for buffer in self.writes:
            if buffer.address < end <= buffer.address + buffer.nbytes:
                return buffer, end - ATOM - buffer.address
        raise AssertionError("the proof names the buffer of each result")


class Job:
    """A prepared job.  Its program stays in the NPU's memory until `free`.

    Args:
        parts: Of each core.
        queues: The requests of each core.
        inputs: As in `Driver.prepare`.
        pool: The threads that run the queues; None: the caller runs them.
        owned: The memory that `Driver.commands` returned; it is freed with the job.
        held: Objects that the structs point to; the job keeps them alive.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        queues: Sequence[CoreQueue],
        inputs: Sequence[Input] = (),
        pool: ThreadPool | None = None,
        owned: Sequence[Suballocation] = (),
        held: Sequence[Any] = (),
    ) -> None:
        self.parts = tuple(parts)
        marked = [buffer.window(at, at + ATOM) for buffer, at in end_atoms(parts)]
        a = inputs[0][0].window(0, inputs[0][1]) if inputs else None
        self.run = Run(queues, SENTINEL, marked, a, pool)
        self._owned = tuple(owned)
        self.held = held
        self.most_s = 0.0  # that it may take
        self.repeated = ""  # why it was run again, when it was
        self.timeout_s = 0.0  # that its structs say
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
            LayoutError: A buffer of it was freed.
        """
        if self._freed() == self.freed:
            return
        for part in self.parts:
            used: tuple[Buffer | Suballocation, ...] = (part.program, *part.reads, *part.writes)
            for each in used:
                if not each.alive:
                    raise LayoutError(
                        f"a job uses buffer {each.name}, which was freed",
                        remedy="prepare the job again, with buffers that are there",
                    )
        self.freed = self._freed()

    def free(self) -> None:
        """Give its program's memory back."""
        for each in self._owned:
            each.free()


def end_atoms(parts: Sequence[Part]) -> list[tuple[Buffer, int]]:
    """Return the buffer and offset of the last atom that each part writes."""
    return [part.last for part in parts]


class Driver(abc.ABC):
    """An opened NPU.  Not thread-safe.

    Attributes:
        deadline_s: Seconds that a job may take at most.
        planned_s: Seconds that a job with many rows may take, by the cost model's slowest estimate.
        repeats: Repetitions of all jobs so far.
        name: The name of the kernel's driver.
        detail: Version and node, for people.
        spaces: The address space of each core.
        chained: Whether a program starts its tasks itself.
        profile: The profile of the programs that `prepare` makes.
    """

    deadline_s = math.inf
    planned_s = math.inf
    repeats = Repeats(0, "")
    name: str
    detail: str
    spaces: tuple[Space, ...]
    chained: bool
    profile = Profile.FULL  # runs under both drivers

    def more_spaces(self) -> tuple[Space, ...]:
        """Return further address spaces, one for each core, or none when there are no more.

        A job uses either `spaces` or the spaces of one such call.
        """
        return ()

    def prepare(
        self,
        cores: Sequence[CoreTasks],
        inputs: Sequence[Input] = (),
        *,
        spaces: Sequence[Space] = (),
        make_room: Callable[[], bool] = lambda: False,
    ) -> Job:
        """Make a job from the tasks of each core, core 0 first: prove its programs, and load them.

        Args:
            cores: The tasks of each core.
            inputs: A, which is written through its `window` before each run or by the run itself;
                then, where cores have address spaces of their own, A of each other core, into which
                the run copies it.
            spaces: The address space of each core, by default the first that there are.
            make_room: See `Space.suballocate`: for the programs.

        Raises:
            LayoutError: A task does not fit its buffers, or the NPU.
            DeviceFull: There is no room for the programs.
        """
        spaces = spaces or self.spaces
        if not 0 < len(cores) <= len(spaces) or not all(core.tasks for core in cores):
            raise LayoutError(
                f"a job was asked for {len(cores)} cores, with "
                f"{[len(core.tasks) for core in cores]} tasks on each",
                remedy=f"give at least one task to each of 1 to {len(spaces)} cores",
            )
        patience = self._patience(self._expected([core.tasks for core in cores]))
        allocated = self.commands(spaces, [len(core.tasks) for core in cores], make_room)
        job = self._load(allocated, inputs, lambda core, at: self._link(cores[core], at))
        job.most_s = min(patience, self.deadline_s)
        return job

    def prepare_words(self, words: U64, profile: Profile) -> Job:
        """Make a job of a finished program, for the first core; otherwise as `prepare`.

        Args:
            words: ``[T, stride]``; their tails are written anew, as this driver starts tasks.
            profile: Of the words.

        Raises:
            LayoutError: The program is not proven harmless.
            DeviceFull: There is no room for it.
        """

        def chained(_core: int, at: int | None) -> U64:
            chain(words, profile, at)
            return words

        usual, self.profile = self.profile, profile
        try:
            job = self._load(self.commands(self.spaces[:1], [len(words)]), (), chained)
        finally:
            self.profile = usual
        job.most_s = self.deadline_s
        return job

    def _load(
        self,
        allocated: Sequence[Suballocation],
        inputs: Sequence[Input],
        words_of: Callable[[int, int | None], U64],
    ) -> Job:
        """Write the program of each core to its memory, and make the job.

        Args:
            allocated: From `commands`.
            inputs: As in `prepare`.
            words_of: Returns the program of a core, whose tasks start each other when they are
                told the address that the program will have.
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
        """Return the seconds that the cost model expects for the slowest core."""
        speed, clock_hz = SPEEDS[self.name].expected, CLOCKS[self.name]
        return max(task_seconds(cores, speed, chained=self.chained, clock_hz=clock_hz))

    def commands(
        self,
        spaces: Sequence[Space],
        tasks: Sequence[int],
        make_room: Callable[[], bool] = lambda: False,
    ) -> list[Suballocation]:
        """Allocate memory for the commands of a job that has *tasks* tasks on each core.

        Returns:
            The memory of each core's program, then other memory that the driver needs.

        Raises:
            DeviceFull: There is none.
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
                allocated.append(space.suballocate(nbytes, role, name, step, make_room))
        except BaseException:
            for each in allocated:
                each.free()
            raise
        return allocated

    def _tables(self, spaces: Sequence[Space], tasks: Sequence[int]) -> Sequence[MemoryRequest]:
        """Return the memory that the kernel needs for a job beside the programs."""
        return ()

    def _part(self, program: Suballocation, words: U64) -> Part:
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
        return Part(program, len(words), proof, reads, writes)

    def run(self, job: Job, timeout_s: float = math.inf) -> None:
        """Run *job* and wait for it.  The CPU sees the results afterwards.

        A job that fails, or leaves its last result unwritten, is tried once more after a reset.
        Each time it may take *timeout_s*, or `deadline_s` or `_patience` if that is less.

        Raises:
            DeviceLost: It failed again, or the device is gone: open it anew.
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
        timeout_s = min(timeout_s, job.most_s)
        for attempt in range(1, ATTEMPTS + 1):
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
        """Return the NPU's time for the last run of *job*; None: the driver does not tell."""
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
        """Return the timeout of a job that the cost model expects to take *seconds*."""
        return GRACE_S + MARGIN * seconds

    @abc.abstractmethod
    def _job(
        self, parts: Sequence[Part], inputs: Sequence[Input], owned: Sequence[Suballocation]
    ) -> Job:
        """Return the job with its requests: clean caches, submit, wait, show the CPU the results.

        The job owns *owned*, which `commands` returned.
        """

    @abc.abstractmethod
    def _set_timeout(self, job: Job, timeout_s: float) -> None:
        """Write the timeout into the structs of *job*."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Reset the cores after a failure, as far as the driver can."""

    def close(self) -> None:
        """Release the device and every buffer.  A second call does nothing."""
        for space in self.spaces:
            space.close()


def input_cleans(parts: Sequence[Part], inputs: Sequence[Input]) -> Iterator[Call]:
    """Yield the calls that clean the caches of the inputs and of the sentinels."""
    for buffer, nbytes in inputs:
        yield from buffer.space.clean_calls(buffer, 0, nbytes)
    for buffer, at in end_atoms(parts):
        yield from buffer.space.clean_calls(buffer, at, at + ATOM)
