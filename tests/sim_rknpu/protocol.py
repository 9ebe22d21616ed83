"""Questions to the mainline driver, and its answers in words: the same of the kernel's and ours.

    python -m tests.sim_rknpu.protocol --kernel     # on a machine with the driver; else simulated

Written for the driver under User-Mode Linux with the simulator's model of a core behind it
(sim/rocket_kernel), so that what differs is the driver.  An answer holds no time and nothing that
depends on how much memory there is.
"""

import argparse
import errno
import platform
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.client import CREATE_BO, FINI_BO, GEM_CLOSE, PREP_BO, SUBMIT_ROCKET, Rocket
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)
RECORDINGS = Path(__file__).parents[1] / "data/rocket"
NOWHERE = 8  # an address that no process has
LONG = 100_000
# Linux 7.2 lets go of a job's buffers some time after it has signalled the fence, and then follows
# a pointer into what belonged to the file: when that is closed already, the kernel may crash.
DRIVER_FREES_S = 0.1

CASES: dict[str, Callable[[Callable[[], Rocket]], str]] = {}


def recorded():
    """Return the recordings: the kernel's name -> question -> answer."""
    return {path.stem: dict(_rows(path)) for path in sorted(RECORDINGS.glob("*.tsv"))}


def _rows(path):
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            name, _, answer = line.partition("\t")
            yield name, answer


def case(function):
    """Make a question of a function, which is called with another that opens a file."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def cases(**rows):
    """Make a question of every row, which becomes the last argument of the function."""

    def make(function):
        for name, row in rows.items():
            label = f"{function.__name__}: {name}".replace("_", " ")
            CASES[label] = lambda opened, row=row: function(opened, row)
        return function

    return make


def said(call, *args):
    """Return "ok", the error's name, or what the call returned."""
    try:
        result = call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok" if result is None or isinstance(result, bytes) else str(result)


def words(*answers):
    return ", ".join(map(str, answers))


def new(driver, size, request=CREATE_BO, left=24):
    """Create a buffer without mapping it; return (handle, address, offset)."""
    args = driver.ioctl(request, struct.pack("<IIQQ", size, 0, 0, 0)[:left])
    return struct.unpack("<IIQQ", args.ljust(24, b"\0"))[1:]


def sized(request, size):
    """Return *request* for an argument of *size* bytes."""
    return request & ~(0x3FFF << 16) | size << 16


# --- the node ----------------------------------------------------------------------------------


@case
def version(opened):
    return words(*opened().version())


@case
def version_with_room_for_three(opened):
    driver = opened()
    text = driver.ffi.new("char[4]", b"....")
    at = int(driver.ffi.cast("uint64_t", text))
    out = driver.ioctl(client.VERSION, struct.pack("<iiii6Q", 0, 0, 0, 0, 3, at, 0, 0, 0, 0))
    lengths = struct.unpack("<iiii6Q", out)[4::2]
    return words(bytes(driver.ffi.buffer(text, 4)).decode(), *lengths)


@cases(
    after_the_last=0xC0106444,
    far_beyond=0xC0106455,
    of_no_driver=0x5401,
    of_another_type=0xC0187840,
)
def request(opened, number):
    return said(opened().ioctl, number, bytes(64))


@case
def argument_nowhere(opened):
    driver = opened()
    result = driver.lib.ioctl(driver.fd, CREATE_BO, driver.ffi.cast("void *", NOWHERE))
    return said(driver.check, result)


# --- buffers -----------------------------------------------------------------------------------


@cases(
    of_0_bytes=0,
    of_1_byte=1,
    of_a_page=4096,
    of_a_page_and_a_byte=4097,
    of_2_GiB=0x80000000,
    of_4_GiB_less_1=0xFFFFFFFF,
)
def create(opened, size):
    driver = opened()
    return words(said(new, driver, size), "then", said(new, driver, 64))


@case
def create_with_a_short_struct(opened):
    return said(new, opened(), 64, sized(CREATE_BO, 8), 8)


@case
def create_with_a_long_struct(opened):
    driver = opened()
    args = struct.pack("<IIQQQ", 64, 0, 0, 0, 77)
    return words(*struct.unpack("<IIQQQ", driver.ioctl(sized(CREATE_BO, 32), args)))


@case
def fields_that_create_should_not_read(opened):
    driver = opened()
    args = struct.pack("<IIQQ", 64, 99, 98, 97)
    return words(*struct.unpack("<IIQQ", driver.ioctl(CREATE_BO, args)))


@case
def addresses_of_buffers(opened):
    driver = opened()
    sizes = (1, 4096, 5000, 64, 1 << 20, 16)
    return words(*(hex(new(driver, size)[1]) for size in sizes))


@case
def addresses_after_some_are_closed(opened):
    driver = opened()
    made = [new(driver, size) for size in (8192, 4096, 4096, 16384, 4096)]
    for handle in (made[0][0], made[3][0]):
        driver.ioctl(GEM_CLOSE, struct.pack("<II", handle, 0))
    again = [new(driver, size) for size in (4096, 8192, 12288, 4096, 8192)]
    return words(*(f"{handle} {address:#x}" for handle, address, _ in again))


@case
def first_address_of_a_second_file(opened):
    first, second = opened(), opened()
    return words(*(hex(new(each, 64)[1]) for each in (first, second, first)))


@case
def new_memory(opened):
    driver = opened()
    buffer = driver.create(5000)
    before = set(buffer.bytes.tolist())
    buffer.bytes[:] = 7
    buffer.destroy()
    return words(before, "again", set(driver.create(5000).bytes.tolist()))


@cases(twice=(1, 1), of_nothing=(9,), of_zero=(0,), of_all_bits=(0xFFFFFFFF,))
def close(opened, handles):
    driver = opened()
    new(driver, 64)
    return words(
        *(said(driver.ioctl, GEM_CLOSE, struct.pack("<II", handle, 0)) for handle in handles)
    )


@case
def close_with_padding(opened):
    driver = opened()
    return said(driver.ioctl, GEM_CLOSE, struct.pack("<II", new(driver, 64)[0], 5))


@cases(
    whole=(8192, 0, 1),
    its_first_page=(4096, 0, 1),
    a_byte=(1, 0, 1),
    a_page_more=(12288, 0, 1),
    its_second_page=(4096, 4096, 1),
    nowhere=(4096, 1 << 40, 1),
    cut_to_32_bits=(4096, -(1 << 32), 1),
    private=(4096, 0, 2),
    of_no_bytes=(0, 0, 1),
)
def mapping(opened, row):
    driver = opened()
    nbytes, offset, flags = row
    start = new(driver, 8192)[2]
    return said(mapped, driver, nbytes, start + offset, flags)


def mapped(driver, nbytes, offset, flags=1):
    at = driver.lib.mmap(driver.ffi.NULL, nbytes, 3, flags, driver.fd, offset)
    driver.check(-1 if at == driver.ffi.cast("void *", -1) else 0)
    driver.lib.munmap(at, nbytes)


@case
def mapping_a_buffer_of_another_file(opened):
    first, second = opened(), opened()
    return said(mapped, second, 4096, new(first, 64)[2])


@case
def mapping_that_outlives_its_buffer(opened):
    driver = opened()
    buffer = driver.create(64)
    buffer.bytes[:] = 7
    buffer.destroy()
    driver.create(64).bytes[:] = 8
    return words(set(buffer.bytes.tolist()))


# --- waiting -----------------------------------------------------------------------------------


@cases(
    of_nothing=(9, 0),
    of_zero=(0, 0),
    with_reserved=(1, 1),
    of_nothing_with_reserved=(9, 1),
    of_a_buffer=(1, 0),
)
def fini(opened, row):
    driver = opened()
    new(driver, 64)
    return said(driver.ioctl, FINI_BO, struct.pack("<II", *row))


@cases(
    of_nothing=(9, 0, 1 << 62),
    with_reserved=(1, 1, 1 << 62),
    of_nothing_with_reserved=(9, 1, 1 << 62),
    of_an_idle_buffer=(1, 0, 1 << 62),
    of_an_idle_buffer_at_once=(1, 0, 0),
    of_an_idle_buffer_before_now=(1, 0, -5),
    until_the_last_nanosecond=(1, 0, (1 << 63) - 1),
)
def prep(opened, row):
    driver = opened()
    new(driver, 64)
    return said(driver.ioctl, PREP_BO, struct.pack("<IIq", *row))


def hung(opened):
    """Return a bench whose list starts nothing, filled and submitted."""
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.good = bench.words
    bench.put(np.zeros_like(bench.words))
    bench.fill()
    bench.start()
    return bench


@case
def prep_of_what_a_hung_job_writes(opened):
    bench = hung(opened)
    soon = [said(bench.c.prep, seconds) for seconds in (-1, 0.02)]
    end = said(bench.c.prep, 10)
    bench.put(bench.good)
    return words(*soon, end, outcome(bench), "then", again(bench))


@case
def prep_of_what_a_hung_job_reads(opened):
    bench = hung(opened)
    answers = [said(each.prep, 0.001) for each in (bench.a, bench.list)]
    return words(*answers, said(bench.c.prep, 10))


@case
def prep_at_once_of_what_a_hung_job_writes(opened):
    bench = hung(opened)
    args = struct.pack("<IIq", bench.c.handle, 0, 0)
    return words(said(bench.driver.ioctl, PREP_BO, args), said(bench.c.prep, 10))


@case
def a_job_behind_one_that_hangs(opened):
    bench = hung(opened)
    other = Bench(bench.driver, TASK, *operands(TASK, seed=1))
    other.fill()
    other.start()
    return words(said(other.c.prep, 10), outcome(other, 1), outcome(bench))


@case
def a_job_of_another_file_beside_one_that_hangs(opened):
    bench = hung(opened)
    other = Bench(opened(), TASK, *operands(TASK, seed=1))
    other.fill()
    other.start()
    answers = said(other.c.prep, 10), outcome(other, 1), said(bench.c.prep, -1)
    return words(*answers, said(bench.c.prep, 10))


# --- jobs --------------------------------------------------------------------------------------


def outcome(bench, seed=0):
    """Return what became of the output."""
    if bench.untouched():
        return "stale"
    right = (bench.output() == exact(TASK, *operands(TASK, seed=seed))).all()
    return "right" if right else "wrong"


def again(bench):
    bench.fill()
    bench.start()
    bench.c.prep(10)
    return outcome(bench)


def settled(bench):
    """Return what became of the output of a job that has no fence for it."""
    until = time.monotonic() + 2
    while bench.untouched() and time.monotonic() < until:
        time.sleep(0.01)
        bench.a.file.ioctl(FINI_BO, struct.pack("<II", bench.a.handle, 0))
        said(bench.c.prep, 0.001)
    return outcome(bench)


def submit(driver, jobs, size=40, stride=None, reserved=0, count=None, at=None):
    """Submit structs drm_rocket_job, *stride* bytes apart."""
    stride = size if stride is None else stride
    raw = b"".join(job.ljust(max(stride, 40), b"\xcc") for job in jobs)
    held = driver.ffi.new("char[]", raw)
    address = int(driver.ffi.cast("uint64_t", held)) if at is None else at
    args = struct.pack("<QIIQ", address, len(jobs) if count is None else count, size, reserved)
    return driver.ioctl(SUBMIT_ROCKET, args)


class Job:
    """A struct drm_rocket_job that runs a bench, and what it points to."""

    def __init__(self, bench, **changes):
        ffi = bench.driver.ffi
        fields = {
            "tasks": struct.pack("<II", bench.list.iova, len(bench.words)),
            "ins": [bench.list.handle, bench.a.handle, bench.b.handle],
            "outs": [bench.c.handle],
            "task_size": 8,
        } | changes
        self.held = [
            ffi.new("char[]", fields["tasks"]),
            ffi.new("uint32_t[]", fields["ins"]),
            ffi.new("uint32_t[]", fields["outs"]),
        ]
        at = [int(ffi.cast("uint64_t", p)) for p in self.held]
        for i, name in enumerate(("tasks_at", "ins_at", "outs_at")):
            at[i] = fields.get(name, at[i])
        counts = (
            fields.get("task_count", len(fields["tasks"]) // fields["task_size"]),
            fields["task_size"],
            fields.get("in_count", len(fields["ins"])),
            fields.get("out_count", len(fields["outs"])),
        )
        self.raw = struct.pack("<QQQ4I", *at, *counts)


@cases(
    no_jobs={"count": 0, "size": 0, "reserved": 9, "at": NOWHERE},
    a_size_of_39={"size": 39},
    a_size_of_48={"size": 48},
    reserved={"reserved": 1},
    jobs_nowhere={"at": NOWHERE},
    jobs_at_zero={"at": 0},
    jobs_in_the_kernel={"at": (1 << 64) - 4096},
    many_jobs_nowhere={"at": NOWHERE, "count": LONG},
    more_jobs_than_there_is_memory={"count": 0xFFFFFFFF},
)
def submit_with(opened, changes):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench)
    answer = said(lambda: submit(bench.driver, [job.raw], **changes))
    return words(answer, said(bench.c.prep, 10), outcome(bench))


@case
def submit_with_a_second_job_nowhere(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    ffi, lib = bench.driver.ffi, bench.driver.lib
    pages = lib.mmap(ffi.NULL, 8192, 3, 0x22, -1, 0)  # private, anonymous
    lib.munmap(ffi.cast("char *", pages) + 4096, 4096)
    job = Job(bench)
    at = int(ffi.cast("uint64_t", pages)) + 4096 - 40
    ffi.memmove(ffi.cast("char *", at), job.raw, 40)
    answer = said(lambda: submit(bench.driver, [job.raw], count=2, at=at))
    return words(answer, said(bench.c.prep, 10), outcome(bench))


@cases(
    nothing_wrong={},
    no_tasks={"task_count": 0},
    tasks_of_7_bytes={"task_size": 7, "task_count": 1},
    tasks_nowhere={"tasks_at": NOWHERE},
    more_tasks_than_there_is_memory={"task_count": 0xFFFFFFFF},
    many_tasks_at_its_last={"task_count": LONG, "tasks_at": NOWHERE},
    unknown_input={"ins": [77]},
    unknown_output={"outs": [77]},
    inputs_nowhere={"ins_at": NOWHERE},
    outputs_nowhere={"outs_at": NOWHERE},
    more_inputs_than_there_is_memory={"in_count": 0xFFFFFFFF},
    more_handles_than_a_number_holds={"in_count": 0xFFFFFFFF, "out_count": 0xFFFFFFFF},
    an_input_twice={"ins": [1, 1]},
    a_buffer_as_both={"ins": [3]},
    no_inputs={"ins": []},
    no_inputs_and_their_list_nowhere={"ins": [], "ins_at": NOWHERE},
)
def job_with(opened, changes):
    """Buffers have handles 1 (A), 2 (B), 3 (C) and 4 (the list)."""
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench, **changes)
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, said(bench.c.prep, 10), outcome(bench), "then", again(bench))


@case
def job_with_no_outputs(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench, outs=[])
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, settled(bench), "then", again(bench))


@case
def job_with_no_buffers(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench, ins=[], outs=[])
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, settled(bench), "then", again(bench))


@case
def job_with_a_task_of_no_words(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench, tasks=struct.pack("<II", bench.list.iova, 0))
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, said(bench.c.prep, 10), outcome(bench))


@case
def job_with_tasks_of_16_bytes(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    tasks = struct.pack("<IIQ", bench.list.iova, len(bench.words), 77)
    job = Job(bench, tasks=tasks, task_size=16)
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, said(bench.c.prep, 10), outcome(bench))


@case
def job_whose_list_is_nowhere(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    job = Job(bench, tasks=struct.pack("<II", 0x7000_0000, len(bench.words)))
    answer = said(lambda: submit(bench.driver, [job.raw]))
    return words(answer, said(bench.c.prep, 10), outcome(bench), "then", again(bench))


def pair(opened):
    driver = opened()
    benches = [Bench(driver, TASK, *operands(TASK, seed=seed)) for seed in (0, 1)]
    for bench in benches:
        bench.fill()
    return driver, benches


def ends(benches):
    answers = [said(bench.c.prep, 10) for bench in benches]
    return words(*answers, *(outcome(bench, seed) for seed, bench in enumerate(benches)))


@case
def two_jobs_of_a_submit(opened):
    driver, benches = pair(opened)
    jobs = [Job(bench) for bench in benches]
    return words(said(lambda: submit(driver, [job.raw for job in jobs])), ends(benches))


@case
def two_jobs_of_which_the_first_is_refused(opened):
    driver, benches = pair(opened)
    jobs = [Job(benches[0], ins=[77]), Job(benches[1])]
    return words(said(lambda: submit(driver, [job.raw for job in jobs])), ends(benches))


def two_tasks(opened, hangs):
    driver, benches = pair(opened)
    if hangs is not None:
        benches[hangs].put(np.zeros_like(benches[hangs].words))
    tasks = b"".join(struct.pack("<II", b.list.iova, len(b.words)) for b in benches)
    ins = [each.handle for b in benches for each in (b.list, b.a, b.b)]
    job = Job(benches[0], tasks=tasks, ins=ins, outs=[b.c.handle for b in benches])
    return words(said(lambda: submit(driver, [job.raw])), ends(benches))


@case
def job_of_two_tasks(opened):
    return two_tasks(opened, None)


@case
def job_whose_first_task_hangs(opened):
    return two_tasks(opened, 0)


@case
def job_whose_second_task_hangs(opened):
    return two_tasks(opened, 1)


@case
def two_submits_that_write_one_buffer(opened):
    driver, (first, second) = pair(opened)
    jobs = [Job(first), Job(second, outs=[second.c.handle, first.c.handle])]
    answers = [said(lambda job=job: submit(driver, [job.raw])) for job in jobs]
    return words(*answers, ends([first, second]))


@case
def job_whose_buffers_are_closed_meanwhile(opened):
    bench = Bench(opened(), TASK, *operands(TASK))
    bench.fill()
    bench.start()
    for buffer in (bench.a, bench.b, bench.list):
        buffer.destroy()
    return words(said(bench.c.prep, 10), outcome(bench))


@case
def handle_of_another_file(opened):
    bench, other = Bench(opened(), TASK, *operands(TASK)), opened()
    bench.fill()
    job = Job(bench)
    answer = said(lambda: submit(other, [job.raw]))
    return words(answer, said(bench.c.prep, 10), outcome(bench))


# --- asking ------------------------------------------------------------------------------------


def ask(name, system=None):
    """Return the answer to a question; files that it opens are closed afterwards."""
    files = []

    def opened():
        files.append(Rocket(system=system))
        return files[-1]

    try:
        return CASES[name](opened)
    finally:
        time.sleep(DRIVER_FREES_S if system else 0)
        for each in files:
            each.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernel", action="store_true", help="ask this machine's driver")
    parser.add_argument("names", nargs="*", help="questions; all of them when none is named")
    args = parser.parse_args()
    if not args.kernel:
        client.configure("strict=0 hang_ms=100 log=0")
    sys.stdout.write(f"# Linux {platform.release()}\n" if args.kernel else "# the simulator\n")
    for name in args.names or CASES:
        answer = ask(name, client.kernel() if args.kernel else None)
        sys.stdout.write(f"{name}\t{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
