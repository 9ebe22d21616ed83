"""Tests of the thread pool: results with any number of threads, busy CPUs, closing, forking."""

import functools
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool, Input, empty
from npurt.cpu.pool.table import RowTable, TableSpan
from npurt.errors import NpurtError, SettingError
from npurt.quant.tensor import QTensor
from tests.cpu import cases
from tests.cpu.foreign import HERE, Recorded, same, with_pool
from tests.limits import HANG_SECONDS
from tools import build

THREADS = (1, 2, 3, 4)  # more than some machines have CPUs


@pytest.fixture(params=THREADS)
def engine(request):
    opened = CpuThreadPool(request.param)
    yield opened
    opened.close()


def layer(program):
    """Add ops of every kind that is divided among threads; return the arrays they write."""
    rng = cases.rng_of("layer")
    m, k = 7, 512
    x, gain = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal(k, dtype="f4")
    written = cases.norm(program, x, gain, 1e-5)
    written += cases.matmul(program, cases.weight(rng, "q4_k", 300, k), x, int16=True)
    written += cases.unit(program, rng.standard_normal((m, 2 * k), dtype=np.float32))
    heads = cases.heads(
        rng, m, 40, n_heads=4, kv_heads=2, width=32, rotated=32, halves=True, dtype=np.float16
    )
    written += cases.rope(program, heads, 40)
    written += cases.attend(program, heads, 40)
    program.rows = m
    return written


def run_layer(engine):
    """Run `layer` once in new memory; return the arrays it wrote."""
    program = Recorded(engine)
    written = layer(program)
    assert program.run() == len(program)
    engine.settle()
    return written


@pytest.fixture(scope="module")
def wanted():
    """Return the arrays that one thread writes."""
    engine = CpuThreadPool(1)
    written = run_layer(engine)
    engine.close()
    return written


def test_any_number_of_threads_gives_the_same_bits(engine, wanted):
    for _ in range(30):
        for have, want in zip(run_layer(engine), wanted, strict=True):
            same(have, want)


def test_a_program_run_again_gives_the_same_bits(engine):
    """The runs do not settle in between: a thread that is one run late changes no result.

    Such a thread may still read weights, so they are packed before.
    """
    rng = cases.rng_of("again")
    packing, program = Recorded(engine), Recorded(engine)
    image = cases.packed(packing, cases.weight(rng, "q6_k", 500, 256))
    packing.run()
    x, y = Input(3, 256, quantised=True), empty(3, 500)
    x.values[:] = cases.activations(rng, 3, 256)
    program.quant(x)
    program.matmul(x, [image], y)
    program.run(RowTable.of(3))
    first = y.copy()

    for _ in range(300):
        y[:] = np.nan
        program.run(RowTable.of(3))
        same(y, first)


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_neighbours_that_take_the_cpus_change_nothing(threads):
    """When a thread is preempted in a chunk, others compute the chunk again with equal results.

    A run has sixty products of a few tens of microseconds each.  The test compares their results,
    and checks that no op is committed twice or left out.
    """
    rng = cases.rng_of("neighbours")
    w, x = cases.weight(rng, "q4_k", 1500, 512), cases.activations(rng, 2, 512)
    engine = CpuThreadPool(threads)
    program = Recorded(engine)
    packing = Recorded(engine)
    image = cases.packed(packing, w)
    packing.run()
    outputs = chain_of_products(program, image, x, 60)
    burn = [sys.executable, "-c", "import time\nwhile time.process_time() < 60: pass"]
    neighbours = [subprocess.Popen(burn) for _ in range(2)]
    try:
        for _ in range(40):
            for y in outputs:
                y[:] = np.nan
            assert program.run(RowTable.of(2)) == len(program)
            for y in outputs[1:]:
                same(y, outputs[0])
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
        engine.close()
    counted = [program.ops[i].calls for i in range(len(program))]
    assert counted == [40] * len(program)


def chain_of_products(program, image, x, count):
    """Add the same product *count* times, each with a separate output; return the outputs."""
    source = Input(*x.shape, quantised=True)
    source.values[:] = x
    program.quant(source)
    outputs = [empty(len(x), image.n) for _ in range(count)]
    for y in outputs:
        program.matmul(source, [image], y)
    return outputs


def test_callers_in_many_threads_take_turns(engine, wanted):
    wrong = []

    def call():
        for _ in range(5):
            pairs = zip(run_layer(engine), wanted, strict=True)
            wrong.extend(
                0 for have, want in pairs if not np.array_equal(have, want, equal_nan=True)
            )

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()

    assert wrong == []


@pytest.fixture(scope="module", params=["in time", "late"])
def program(request, tmp_path_factory):
    """Return a function that compiles a program of this folder, with normal or delayed threads."""
    folder = tmp_path_factory.mktemp("c")

    @functools.cache
    def compiled(name):
        sources = with_pool(HERE / name, late=request.param == "late")
        return build.compile_executable(sources, build.host(), folder / name.removesuffix(".c"))

    return compiled


def run(*command):
    """Run a program that must end with status 0."""
    subprocess.run([str(part) for part in command], check=True, timeout=HANG_SECONDS)


@pytest.mark.parametrize("threads", [2, 3, 8, 11])
def test_memory_may_be_freed_once_a_run_has_returned_and_weights_once_it_has_settled(
    program, threads
):
    """No thread reads memory after it may be freed, and results are right; see runs.c."""
    run(program("runs.c"), threads, 1000)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_what_comes_after_a_stopped_run_is_done_once(program, threads):
    """A thread that has not noticed the stop of its run does not do the later ops again."""
    run(program("stopped.c"), threads, 1000)


@pytest.fixture(scope="module")
def pool_program(tmp_path_factory):
    """Return a function that compiles a program that includes pool.c."""
    others = [s for s in build.library_sources() if s.name != "pool.c"]
    folder = tmp_path_factory.mktemp("c")
    return lambda name: build.compile_executable(
        [*others, HERE / name], build.host(), folder / name.removesuffix(".c")
    )


@pytest.mark.parametrize("threads", [2, 3])
def test_numbers_of_runs_may_begin_again(pool_program, threads):
    run(pool_program("wrap.c"), threads)


@pytest.fixture(scope="module")
def lanes(pool_program):
    """Return a function that runs lanes.c and returns each order as pairs (thread, chunk)."""
    program = pool_program("lanes.c")

    def orders(threads, chunks):
        command = [program, str(threads), str(chunks)]
        done = subprocess.run(
            command, timeout=HANG_SECONDS, check=True, text=True, stdout=subprocess.PIPE
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        return [[tuple(map(int, pair.split(":"))) for pair in line] for line in lines]

    return orders


@pytest.mark.parametrize("chunks", [0, 1, 2, 7, 8, 12, 255])
@pytest.mark.parametrize("threads", [1, 2, 3, 8, 11])
def test_a_thread_takes_neighbouring_chunks_and_then_those_of_others(lanes, threads, chunks):
    """Threads read weights in order; beyond eight threads, some start at the same chunk."""
    *alone, together = lanes(threads, chunks)

    count = min(threads, 8)
    starts = [-(-chunks * (thread % count) // count) for thread in range(threads)]
    assert len(alone) == threads
    for thread, order in enumerate(alone):
        assert order == [(thread, (starts[thread] + i) % chunks) for i in range(chunks)]
    assert sorted(chunk for _, chunk in together) == list(range(chunks))
    for thread in range(count if threads == count else 0):
        own = [chunk for taker, chunk in together if taker == thread][: chunks // count]
        assert own == list(range(starts[thread], starts[thread] + chunks // count))


DROPPED = """
import numpy as np
from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.program import Program
from npurt.device.delta import DeltaNet
from npurt.quant.tensor import QTensor

device = CpuDevice(threads=8)
rng = np.random.default_rng(1)
w = QTensor.quantize(np.ones((2048, 512), np.float32), "q8_0")
a, b = rng.integers(-9, 9, (600, 64), np.int8), rng.integers(-9, 9, (64, 48), np.int8)
wide = a.astype(np.int32) @ b

def product():
    packed, program = device.pack(w), Program(device.engine)
    x, y = Input(1, 512, quantised=True), empty(1, 2048)
    x.values[:] = 1
    program.quant(x)
    program.matmul(x, [packed.image], y)
    assert program.run() == 2
    assert abs(y - 512).max() < 1

def net():
    t, width = 600, 16
    values = [np.full((1, t, 1, width), 0.1, np.float32) for _ in range(4)]
    gates = [np.full((1, t, 1, 1), -0.1, np.float32), np.full((1, t, 1), 0.5, np.float32)]
    state = np.zeros((1, 1, width, width), np.float32)
    device.delta_net(DeltaNet(*values[:3], *gates, values[3], state, 1.0, False))
    return state

first = net()
for i in range(300):
    product()
    if i % 10 == 0:
        assert (device.matmul_i8(a, b) == wide).all()
        assert (net() == first).all()
"""


def test_programs_and_weights_may_be_dropped_as_soon_as_a_run_has_returned():
    """Programs and weights that a device makes for one call may be dropped at once, too."""
    subprocess.run([sys.executable, "-c", DROPPED], check=True, timeout=HANG_SECONDS)


def product_that_ran(engine):
    """Return a list with only a program, and a weak reference to the image of its weight."""
    rng, program = cases.rng_of("dropped"), Recorded(engine)
    w, x = cases.weight(rng, "q4_k", 64, 256), cases.activations(rng, 1, 256)
    image = weakref.ref(cases.matmul(program, w, x)[0])
    program.run()
    return [program], image


def test_the_memory_of_a_dropped_program_is_free_at_once(engine):
    held, image = product_that_ran(engine)
    assert image() is not None

    held.clear()

    assert image() is None


def test_what_is_dropped_while_another_thread_has_its_turn_is_free_after_it(engine):
    """The thread that drops the program does not wait."""
    held, image = product_that_ran(engine)
    with engine:
        other = threading.Thread(target=held.clear)
        other.start()
        other.join()
        assert image() is not None

    assert image() is None


SLOW = """
import sys, time
import numpy as np
from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.program import Program
from npurt.quant.tensor import QTensor

device = CpuDevice(threads=3)
packed = device.pack(QTensor.quantize(np.ones((2048, 512), np.float32), "q8_0"))
program, x, y = Program(device.engine), Input(1, 512, quantised=True), empty(1, 2048)
x.values[:] = 1
program.quant(x)
program.matmul(x, [packed.image], y)
program.run()
assert abs(y - 512).max() < 1
if sys.argv[1] == "drop":
    packed = program = None
    time.sleep(0.5)
"""

LAST = """
import atexit, ctypes, mmap, time

def forbid():
    libc = ctypes.CDLL(None, use_errno=True)
    first = image.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    assert libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(image.nbytes), 0) == 0
    time.sleep(0.5)

atexit.register(forbid)  # first: it is called last
"""


@pytest.fixture(scope="module")
def slow_library(tmp_path_factory):
    """Return the path of a kernel library with workers that delay chunks computed twice."""
    sources = [s for s in build.library_sources() if s.name != "pool.c"] + [HERE / "slow_pool.c"]
    return build.build_library(
        build.host(), tmp_path_factory.mktemp("c") / "libnpurt_cpu.so", sources=sources
    )


@pytest.mark.parametrize("end", ["drop", "exit"])
def test_a_late_thread_is_out_of_weights_before_they_are_freed(slow_library, monkeypatch, end):
    """Weights are freed when a program is dropped, or when the interpreter exits."""
    monkeypatch.setenv("NPURT_CPU_LIBRARY", str(slow_library))
    code = SLOW if end == "drop" else LAST + SLOW + "image = packed.image.data\n"

    run(sys.executable, "-c", code, end)


def test_an_engine_settles_and_closes_as_often_as_asked():
    engine = CpuThreadPool(2)
    run_layer(engine)

    for _ in range(2):
        engine.settle()
    for _ in range(2):
        engine.close()
    engine.settle()


def test_a_closed_device_says_so():
    w = QTensor.quantize(np.ones((4, 32)), "q8_0")
    device = CpuDevice(threads=2)
    packed = device.pack(w)
    device.close()

    for use in (
        lambda: device.pack(w),
        lambda: device.matmul(np.ones((1, 32), np.float32), packed, np.empty((1, 4), np.float32)),
        lambda: device.matmul_i8(np.ones((1, 4), np.int8), np.ones((4, 1), np.int8)),
    ):
        with pytest.raises(NpurtError, match="closed"):
            use()


@pytest.mark.parametrize("threads", [-1, 257])
def test_a_number_of_threads_that_makes_no_sense_is_refused(threads):
    with pytest.raises(SettingError, match=f"{threads} threads"):
        CpuThreadPool(threads)


def test_a_kernel_set_that_is_not_here_is_refused_with_those_that_are():
    with pytest.raises(SettingError, match="'mmx'") as caught:
        CpuThreadPool(1, "mmx")

    assert next(iter(abi.isas())) in caught.value.remedy


FORKED = """
import os, signal, sys, threading, warnings
import numpy as np
from npurt.cpu.pool.engine import CpuThreadPool, Input, empty
from npurt.errors import NpurtError
from tests.cpu.test_pool import run_layer

warnings.simplefilter("ignore")  # Python warns of forking with threads
engine = CpuThreadPool(3)
wanted = run_layer(engine)
busy = threading.Event()

def keep_running():
    while True:
        run_layer(engine)
        busy.set()

if sys.argv[1] == "busy":
    threading.Thread(target=keep_running, daemon=True).start()
    busy.wait()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits for a lock nobody will release
        try:
            have = run_layer(engine)
        except NpurtError:
            os._exit(0)
        os._exit(0 if all(map(np.array_equal, have, wanted)) else 1)
    if os.waitpid(child, 0)[1]:
        os._exit(1)
os._exit(0 if all(map(np.array_equal, run_layer(engine), wanted)) else 2)
"""


@pytest.mark.parametrize("parent", ["idle", "busy"])
def test_a_forked_child_runs_alone_or_is_told_why_not(parent):
    """A fork is safe even when another thread of the parent is in the middle of a run."""
    done = subprocess.run([sys.executable, "-c", FORKED, parent])

    assert done.returncode == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_without_logits_skips_the_last_product(threads):
    """A run that selects no rows does not call the op that works on selected rows."""
    rng = cases.rng_of("no logits")
    w, x = cases.weight(rng, "q8_0", 500, 256), cases.activations(rng, 3, 256)
    engine = CpuThreadPool(threads)
    program, y = Recorded(engine), np.full((3, 500), np.nan, np.float32)
    source = Input(3, 256, quantised=True)
    source.values[:] = x
    program.quant(source)
    program.matmul(source, [cases.packed(Recorded(engine), w)], y, selects=True)

    assert program.run(RowTable([TableSpan(3)], np.zeros(0, np.int32))) == len(program)

    assert np.isnan(y).all()
    assert [op.calls for op in program.ops[0:2]] == [1, 0]
    engine.close()
