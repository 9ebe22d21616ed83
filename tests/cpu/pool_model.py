"""A small model of the protocol of npurt/cpu/pool/pool.c, for `memory_model.Explorer`.

Functions have the names of those in pool.c.  The model omits the words on which sleeping threads
wait, the accounts, and the number of lanes: one lane has all chunks.  A division is one word: the
number of its run and its chunks.  A job is two words: the number of its run and its ops.

The ops are small, too.  A product reads `input`, its description `op`, and `weights`, and writes a
result for each chunk; a sum adds the results to `input`.  The main thread writes `op` between runs.
It overwrites everything but `weights` as soon as the last run has returned, as if the memory were
freed.

    python -m tests.cpu.pool_model      explores scenarios that take minutes
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.cpu.memory_model import (
    ACQUIRE,
    RELAXED,
    RELEASE,
    Await,
    Change,
    Choose,
    Explorer,
    Load,
    Read,
    Store,
    Thread,
    Write,
)

OVER, STOPPED, CLOSING = range(3)
OPEN = CLOSING

# Errors that can be put into the protocol; the search must find each of them.
BROKEN = {
    "failure is reset": "that a run has stopped is one word, which the next resets as it begins",
    "early end": "the last to commit ends the run before it accounts for the op",
    "no wait for copies": "the last to commit does not wait for those that copy the input",
    "reads after taking": "a thread says that it reads the op once it has taken a chunk of it",
    "helps blindly": "a thread that helps does not look whether chunks are left before it copies",
    "reads blindly": "a thread looks at a slot and not at whether its run is over",
    "relaxed reads": "the end of a copy is not released",
    "joins blindly": "a worker does not look at `settled` before it begins",
    "joins late": "a worker counts itself in after it has looked at `settled`",
    "open lanes": "lanes are not closed while the division changes",
}


@dataclass(frozen=True)
class Scenario:
    """Runs to explore.

    Runs are strings of ops: `p` is a product whose chunks may be computed twice, `x` a product
    whose chunks are computed once, `f` a product that does not verify, `+` a sum.
    """

    runs: tuple[str, ...]
    workers: int = 1
    chunks: int = 1  # of a product
    weak: bool = True
    broken: str = ""

    def explore(self) -> int:
        """Return the number of states that the runs can reach; see `Explorer.run`."""
        return Explorer(list(self._threads()), self._atomics(), self._plain(), weak=self.weak).run()

    def _threads(self) -> Iterator[Callable[[], Thread]]:
        yield lambda: self.main()
        for worker in range(self.workers):
            yield lambda me=worker + 1: self.work(me)

    def _atomics(self) -> dict[str, Any]:
        places: dict[str, Any] = {
            "run": 0,
            "settled": 0,
            "inside": 0,
            "failed": None,
            "repeats": 0,
        }
        places |= {"job run": 0, "job ops": "", "stop": 0}
        for thread in range(self.workers + 1):
            places[f"reads {thread}"] = 0
        for index in range(max(map(len, self.runs))):
            places |= {
                f"ticket {index}": (0, 0),
                f"left {index}": (0, 0),
                f"division {index}": (0, 0),
            }
            places |= {f"slot {index} {chunk}": 0 for chunk in range(self.chunks)}
        return places

    def _plain(self) -> dict[str, Any]:
        results = {f"result {chunk}": 0 for chunk in range(self.chunks)}
        return {"input": 1, "op": 0, "weights": 1, "waited": 0} | results

    def _count(self, kind: str) -> int:
        return 1 if kind == "+" else self.chunks

    # --- As in pool.c ---------------------------------------------------------------------------

    def is_settled(self, run: int, index: int) -> Thread:
        """Return True when a run may not begin, or may not continue with the op at *index*."""
        if self.broken == "failure is reset" and index:
            current = yield Load("run")
            failed = yield Load("failed")
            return current != run or failed is not None
        if self.broken in ("joins blindly", "joins late") and not index:
            return False
        settled = yield Load("settled")
        return run <= settled

    def left_of(self, index: int, run: int) -> Thread:
        """Return OPEN plus the chunks that are not committed, or CLOSING, STOPPED or OVER."""
        of, left = yield Load(f"left {index}")
        return left if of == run else OVER

    def take(self, index: int, run: int, count: int) -> Thread:
        """Take a chunk; return its number, or -1 if none is left."""
        of, ticket = yield Load(f"ticket {index}", ACQUIRE)
        if of != run or ticket >= count:
            return -1
        of, ticket = yield Change(
            f"ticket {index}",
            lambda now: (run, now[1] + 1) if now[0] == run and now[1] < count else None,
        )
        return ticket if of == run and ticket < count else -1

    def await_copies(self) -> Thread:
        """Wait until no thread reads the op."""
        repeats = yield Load("repeats")
        waited = yield Read("waited")
        if self.broken == "no wait for copies" or repeats == waited:
            return
        for thread in range(self.workers + 1):
            yield Await(f"reads {thread}", lambda reads: not reads)
        yield Write("waited", repeats)

    def finish(self, index: int, kind: str, run: int) -> Thread:
        """Verify the op, and let all threads continue."""
        yield from self.await_copies()
        stops = kind == "f"
        if stops and self.broken == "early end":
            yield Store("settled", run)
        if kind != "+":
            op = yield Read("op")  # to account for it
            yield Write("op", op)
        if stops and self.broken == "failure is reset":
            yield Store("failed", index)
            stops = False
        yield Store(f"left {index}", (run, STOPPED if stops else OVER))

    def count_done(self, index: int, kind: str, run: int) -> Thread:
        """Count a chunk as done; finish the op if it was the last chunk."""
        _, before = yield Change(f"left {index}", lambda left: (left[0], left[1] - 1))
        if before == OPEN + 1:
            yield from self.finish(index, kind, run)

    def copy(self, me: int) -> Thread:
        """Copy the op and its input."""
        op = yield Read("op")
        copied = yield Read("input")
        order = RELAXED if self.broken == "relaxed reads" else RELEASE
        yield Store(f"reads {me}", 0, order)
        assert op == "op", "the op was freed"
        return copied

    def commit(self, index: int, kind: str, run: int, chunk: int, value: int) -> Thread:
        """Write the result of a chunk, and count the chunk as done."""
        yield Write(f"result {chunk}", value)
        yield from self.count_done(index, kind, run)

    def do_copied(self, index: int, kind: str, run: int, chunk: int, copied: int) -> Thread:
        """Compute a chunk; commit it if no other thread has."""
        seen = yield Load(f"slot {index} {chunk}")
        if seen == run:
            return
        if self.broken != "reads blindly":
            left = yield from self.left_of(index, run)
            if left <= CLOSING:
                return
        weights = yield Read("weights")
        found = yield Change(f"slot {index} {chunk}", lambda slot: run if slot == seen else None)
        if found == seen:
            yield from self.commit(index, kind, run, chunk, copied * weights)

    def do_alone(self, index: int, kind: str, run: int, chunk: int) -> Thread:
        """Compute a chunk of an op whose chunks are computed only once."""
        value = yield Read("input")
        if kind == "+":
            for each in range(self.chunks):
                value += yield Read(f"result {each}")
            yield Write("input", value)
            yield from self.count_done(index, kind, run)
        else:
            yield from self.commit(index, kind, run, chunk, value)

    def do_chunks(self, me: int, index: int, kind: str, run: int) -> Thread:
        """Take and compute chunks; return the copy that was made, or None."""
        division, count = yield Load(f"division {index}", ACQUIRE)
        copied = None
        early = kind in "pf" and self.broken != "reads after taking"
        while True:
            if early and copied is None:
                yield Store(f"reads {me}", 1, RELAXED)
            chunk = yield from self.take(index, run, count)
            if chunk < 0:
                if early and copied is None:
                    yield Store(f"reads {me}", 0, RELEASE)
                return copied
            assert division == run, "a chunk was taken by the division of another run"
            if kind not in "pf":
                yield from self.do_alone(index, kind, run, chunk)
                continue
            if copied is None:
                if not early:
                    yield Store(f"reads {me}", 1, RELAXED)
                copied = yield from self.copy(me)
            yield from self.do_copied(index, kind, run, chunk, copied)

    def help(self, me: int, index: int, kind: str, run: int, copied: int | None) -> Thread:
        """Compute again the chunks that other threads have taken."""
        if copied is None:
            yield Store(f"reads {me}", 1)
        yield Change("repeats", lambda repeats: repeats + 1)
        left = OPEN + 1
        if self.broken != "helps blindly":
            left = yield from self.left_of(index, run)
        if copied is None and left > CLOSING:
            copied = yield from self.copy(me)
        elif copied is None:
            yield Store(f"reads {me}", 0, RELEASE)
            return
        for chunk in range(self.chunks):
            yield from self.do_copied(index, kind, run, chunk, copied)

    def wait(self, me: int, index: int, kind: str, run: int, copied: int | None) -> Thread:
        """Wait for the end of the op, and help once or not; return STOPPED or OVER."""
        if kind in "pf":
            helps = yield Choose()
            left = OVER
            if helps:
                left = yield from self.left_of(index, run)
            if left > CLOSING:
                yield from self.help(me, index, kind, run, copied)
        of, left = yield Await(f"left {index}", lambda left: left[0] != run or left[1] < CLOSING)
        return left if of == run else OVER

    def walk(self, me: int, run: int, ops: str, of: int) -> Thread:
        """Do the ops of a run; return the number of ops done.  *of* is the run of *ops*."""
        for index, kind in enumerate(ops):
            over = yield from self.is_settled(run, index)
            if over:
                return index
            assert of == run, "a worker has the job of another run"
            copied = yield from self.do_chunks(me, index, kind, run)
            left = yield from self.wait(me, index, kind, run, copied)
            if left == STOPPED:
                return index
        return len(ops)

    def work(self, me: int) -> Thread:
        """Join runs until the pool stops, as a worker does."""
        last = 0
        while True:
            run = yield Await("run", lambda run, last=last: run != last)
            last = run
            settled = 0
            if self.broken == "joins late":
                settled = yield Load("settled")
            yield Change("inside", lambda inside: inside + 1)
            ops = yield Load("job ops", ACQUIRE)
            of = yield Load("job run", ACQUIRE)
            stop = yield Load("stop")
            if not stop and settled < run:
                yield from self.walk(me, run, ops, of)
            yield Change("inside", lambda inside: inside - 1)
            if stop:
                return

    def settle(self, run: int) -> Thread:
        """Wait until no worker is inside a run."""
        yield Store("settled", run)
        yield Await("inside", lambda inside: inside == 0)

    def open_lanes(self, index: int, kind: str, run: int) -> Thread:
        """Let threads take chunks."""
        count = self._count(kind)
        if self.broken != "open lanes":
            yield Store(f"ticket {index}", (run, count))
        yield Store(f"division {index}", (run, count), RELEASE)
        yield Store(f"left {index}", (run, OPEN + count))
        yield Store(f"ticket {index}", (run, 0), RELEASE)

    def start(self, run: int, ops: str) -> Thread:
        """Do what npurt_run does: run *ops*, and return the number of ops done."""
        yield Store("settled", run - 1)
        for index, kind in enumerate(ops):
            yield from self.open_lanes(index, kind, run)
        yield Store("job ops", ops, RELEASE)
        yield Store("job run", run, RELEASE)
        if self.broken == "failure is reset":
            yield Store("failed", None)
        yield Store("run", run)
        done = yield from self.walk(0, run, ops, run)
        failed = None
        if self.broken == "failure is reset":
            failed = yield Load("failed")
        return done if failed is None else failed

    def main(self) -> Thread:
        """Start the runs in turn, check the results, and overwrite what a caller may free."""
        value, results = 1, 0
        for before, ops in enumerate(self.runs):
            yield Write("op", "op")
            done = yield from self.start(before + 1, ops)
            assert done == len(ops.partition("f")[0]), f"{done} ops of {ops} are done"
            for kind in ops[: done + 1]:  # a product that stops the run has written its results
                if kind == "+":
                    value += results
                else:
                    results = self.chunks * value
            have = yield Read("input")
            assert have == value, f"the sum is {have}, not {value}"
        yield Write("op", "freed")
        yield Write("input", 0)
        for chunk in range(self.chunks):
            yield Write(f"result {chunk}", 0)
        yield from self.settle(len(self.runs))
        yield Write("weights", 0)
        yield Store("stop", 1)
        yield Store("run", len(self.runs) + 1)


# Scenarios that take minutes each.
LARGE = (
    Scenario(("p+", "p"), weak=False),
    Scenario(("pf+", "f+"), weak=False),
    Scenario(("p", "p")),
    Scenario(("p+", "+")),
    Scenario(("p",), workers=2, weak=False),
    Scenario(("p", "p"), chunks=2, weak=False),
    Scenario(("p",), chunks=2),
)


if __name__ == "__main__":
    for scenario in LARGE:
        sys.stdout.write(f"{scenario}: {scenario.explore()} states\n")
        sys.stdout.flush()
