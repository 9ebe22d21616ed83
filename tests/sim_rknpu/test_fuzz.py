"""Test that no words, structs or pointers crash the process or make it wait for ever.

Each test runs in a separate process, so that a crash fails only this test.
"""

import os
import random
import signal
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.limits import HANG_SECONDS
from tests.sim_rknpu import client, lists
from tests.sim_rknpu.bench import Bench, operands
from tests.sim_rknpu.lists import Task

SEEDS = range(4)
WORDS, CALLS = 1500, 3000  # of each seed
SHAPES = (
    Task(4, 64, 64),
    Task(5, 96, 32, "native-w"),
    Task(3, 64, 64, "native-w", ("int4", "int16")),
    Task(3, 64, 32, "row", ("fp16", "fp16")),
)
REQUESTS = (
    client.CREATE_BO, client.SUBMIT_ROCKET, client.PREP_BO, client.FINI_BO, client.ACTION,
    client.SUBMIT, client.MEM_CREATE, client.MEM_MAP, client.MEM_DESTROY, client.MEM_SYNC,
    client.VERSION, client.GEM_CLOSE, 0xC0FF6441, 0x00006442, 0xFFFFFFFF,
)  # fmt: skip


def a_number(rng, useful):
    """Return a number that is often near a limit."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.getrandbits(64)
    if kind == 1:
        return 1 << rng.randrange(64)
    if kind == 2:
        return rng.randrange(8)
    if kind == 3:
        return (rng.choice(useful) + rng.randrange(-64, 64)) % (1 << 64)
    return rng.choice(useful)


def hostile_words(rng, bench):
    """Return the bench's list with some values, offsets or whole words replaced."""
    words = bench.words.copy()
    useful = [bench.task.a, bench.task.b, bench.task.c, bench.list.iova, 0xFFF, 0xFFFFFFFF, 16, 32]
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        i = rng.randrange(len(words))
        word = int(words[i])
        value = a_number(rng, useful) & 0xFFFFFFFF
        changed = (word & ~(0xFFFFFFFF << 16)) | value << 16
        words[i] = np.uint64(rng.choice((changed, changed, rng.getrandbits(64))))
    return words


def run_words(seed):
    rng = random.Random(seed)
    with rng.choice((client.Rocket, client.Rknpu))() as driver:
        benches = [Bench(driver, task, *operands(task)) for task in SHAPES]
        for _ in range(WORDS):
            bench = rng.choice(benches)
            bench.put(hostile_words(rng, bench))
            try:
                bench.run()
            except OSError:
                client.configure("reload=1")
            bench.words = lists.encode(bench.task)


def run_calls(seed):
    rng = random.Random(seed)
    files = [client.Rocket(), client.Rknpu(), client.Rocket()]
    ffi, lib, _ = client.simulator()
    memory = ffi.new("char[]", 1 << 16)
    arena = memory + (
        1 << 15
    )  # the driver may write beyond the struct, so that memory must be the test's
    base = int(ffi.cast("uint64_t", arena))
    useful = [base, base + 4096, 1, 2, 64, 4096, 0x10000000, 0xFFFFA000, 0xFFFFFF8000000400, 40]
    for _ in range(CALLS):
        noise = struct.pack("<32Q", *(a_number(rng, useful) for _ in range(32)))
        ffi.buffer(arena, 256)[:] = noise
        file = rng.choice(files)
        argument = rng.choice((base, base, base, a_number(rng, useful)))
        request = rng.choice(REQUESTS)
        if request & 0xFF in (
            0x40,
            0x42,
        ):  # these may create a buffer, whose size must fit the machine
            ffi.buffer(arena, 4)[:] = struct.pack("<I", rng.randrange(1 << 16))
            ffi.buffer(arena + 8, 8)[:] = struct.pack("<Q", rng.randrange(1 << 16))
            argument = base
        lib.ioctl(file.fd, request, ffi.cast("void *", argument))
        if rng.randrange(50) == 0:
            lib.mmap(ffi.NULL, 4096, 3, 1, file.fd, rng.choice((1 << 32, rng.getrandbits(40))))
        if rng.randrange(200) == 0:
            client.configure("reload=1")
            place = files.index(file)
            file.close()
            files[place] = type(file)()
    for file in files:
        file.close()


@pytest.mark.parametrize("what", ["run_words", "run_calls"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_brings_the_process_down(what, seed):
    command = [sys.executable, "-m", __name__, what, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)

    assert done.returncode == 0, (
        f"{signal.Signals(-done.returncode)!r}" * (done.returncode < 0) + done.stderr
    )


def test_a_buffer_that_goes_while_a_job_may_use_it_does_no_harm():
    """The kernel retains listed buffers; a task that reads another, freed buffer faults."""
    task = replace(Task(64, 1024, 1024))
    with client.Rocket() as driver:
        for _ in range(20):
            bench = Bench(driver, task, *operands(task))
            driver.submit([(bench.list.iova, 126)], [bench.list], [bench.c])
            bench.a.destroy()
            bench.b.destroy()
            bench.c.destroy()
        bench = Bench(driver, task, *operands(task))
        bench.run()
        driver.submit([(bench.list.iova, 126)], [bench.list], [bench.c])


if __name__ == "__main__":
    client.configure("hang_ms=0.01 log=0")
    os.environ.pop("NPURT_SIM_RKNPU", None)
    {"run_words": run_words, "run_calls": run_calls}[sys.argv[1]](int(sys.argv[2]))
