"""Questions to the mainline driver about waiting and about jobs."""

import struct
import time

import numpy as np

from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.client import FINI_BO, PREP_BO, SUBMIT_ROCKET
from tests.sim_rknpu.questions import LONG, NOWHERE, TASK, case, cases, new, said, words

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
    """Return a bench whose list starts no block, with the output filled and the list submitted."""
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
    """Return the state of the output."""
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
    """Return the state of an output that has no fence in its job."""
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
    """A struct drm_rocket_job that runs a bench, and the structs that it points to."""

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
