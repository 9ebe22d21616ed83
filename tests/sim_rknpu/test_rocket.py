"""Test the mainline driver's ioctls: refused requests, accepted requests and waits.

Source of the expected behaviour: drivers/accel/rocket/rocket_gem.c and rocket_job.c of Linux 6.18.
test_protocol.py has the driver's recorded answers.
"""

import os
import struct
import time

import numpy as np
import pytest

from tests.sim_rknpu import client, lists
from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.client import (
    CREATE_BO,
    FINI_BO,
    GEM_CLOSE,
    PREP_BO,
    ROCKET_NODE,
    SUBMIT_ROCKET,
    Rocket,
    now,
)
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)


@pytest.fixture
def driver():
    with Rocket() as opened:
        yield opened


@pytest.fixture
def bench(driver):
    return Bench(driver, TASK, *operands(TASK))


def test_the_driver_says_its_name(driver):
    assert driver.version() == ((0, 0, 0), ["rocket", "0", "rocket DRM"])


def test_a_name_that_does_not_fit_is_cut_and_its_length_told(driver):
    text = driver.ffi.new("char[4]", b"....")
    at = int(driver.ffi.cast("uint64_t", text))
    args = struct.pack("<iiii6Q", 0, 0, 0, 0, 3, at, 0, 0, 0, 0)

    out = struct.unpack("<iiii6Q", driver.ioctl(client.VERSION, args))

    assert bytes(driver.ffi.buffer(text, 4)) == b"roc."
    assert out[4::2] == (6, 1, 10)


def test_only_nodes_that_are_there_open():
    client.configure("nodes=accel3,card0")
    with Rocket("/dev/accel/accel3"), client.Rknpu("/dev/dri/card0"):
        pass
    for node in (ROCKET_NODE, "/dev/accel/accel33", "/dev/accel", client.RKNPU_NODE):
        with pytest.raises(OSError, match=r"ENOENT|EACCES|EISDIR|ENXIO|ENODEV"):
            Rocket(node)


def test_guarded_buffers_do_not_touch_and_hold_a_pattern(driver):
    buffers = [driver.create(size) for size in (1, 4096, 5000, 64)]

    assert [b.handle for b in buffers] == [1, 2, 3, 4]
    assert buffers[0].iova == 0x10000000
    ends = [b.iova + len(b.bytes) for b in buffers]
    assert all(b.iova >= end + 4096 for b, end in zip(buffers[1:], ends, strict=False))
    assert all((b.bytes == 0xA5).all() for b in buffers)


def test_the_first_address_may_be_zero():
    client.configure("iova_base=0")
    with Rocket() as driver:
        first = driver.create(64)
        second = driver.create(64)

    assert (first.iova, second.iova) == (0, 8192)


def test_a_handle_and_its_addresses_are_used_again(driver):
    first, second = driver.create(64), driver.create(64)
    first.destroy()

    again = driver.create(64)

    assert (again.handle, again.iova) == (first.handle, first.iova)
    assert second.handle == 2
    with pytest.raises(OSError, match="EINVAL"):
        driver.ioctl(GEM_CLOSE, struct.pack("<II", 7, 0))


def test_a_mapping_outlives_its_buffer_and_its_file():
    with Rocket() as driver:
        buffer = driver.create(64)
        buffer.bytes[:] = 7
        buffer.destroy()

    assert (buffer.bytes == 7).all()


@pytest.mark.parametrize(
    ("nbytes", "offset", "flags"),
    [(8192, 0, 1), (64, 4096, 1), (64, 1 << 40, 1), (64, -(1 << 32), 1), (64, 0, 2)],
    ids=["too long", "inside", "nowhere", "32 bits of an offset", "private"],
)
def test_only_a_buffers_own_offset_can_be_mapped(driver, nbytes, offset, flags):
    args = struct.pack("<IIQQ", 64, 0, 0, 0)
    start = struct.unpack("<IIQQ", driver.ioctl(CREATE_BO, args))[3]
    at = driver.lib.mmap(driver.ffi.NULL, nbytes, 3, flags, driver.fd, start + offset)

    assert at == driver.ffi.cast("void *", -1)


def test_a_file_without_room_says_so(driver):
    client.configure("iova_base=0xf0000000")
    with Rocket() as small, pytest.raises(OSError, match="ENOSPC"):
        small.create(256 << 20)
    with pytest.raises(OSError, match="ENOSPC"):
        driver.create(0)


@pytest.mark.parametrize("request_", [PREP_BO, FINI_BO], ids=["prep", "fini"])
def test_a_bad_handle_or_a_reserved_field_is_refused(driver, request_):
    handle = driver.create(64).handle
    tail = struct.pack("<q", now()) if request_ == PREP_BO else b""
    with pytest.raises(OSError, match="ENOENT"):
        driver.ioctl(request_, struct.pack("<II", 99, 0) + tail)
    with pytest.raises(OSError, match="EINVAL"):
        driver.ioctl(request_, struct.pack("<II", handle, 1) + tail)


def test_an_unknown_request_is_refused(driver):
    with pytest.raises(OSError, match="EINVAL"):
        driver.ioctl(0xC0106455, bytes(16))
    with pytest.raises(OSError, match="ENOTTY"):
        driver.ioctl(0x5401, bytes(64))


# --- submit ----------------------------------------------------------------------------------


def submit(driver, job_count=1, size=40, reserved=0, jobs=None, **fields):
    """Submit one struct drm_rocket_job made of *fields*."""
    ffi = driver.ffi
    tasks = ffi.new("char[]", fields.pop("tasks", bytes(8)))
    ins = ffi.new("uint32_t[]", fields.pop("ins", [0]))
    outs = ffi.new("uint32_t[]", fields.pop("outs", [0]))
    values = {"count": 1, "task_size": 8, "in": len(ins), "out": len(outs)} | fields
    at = [int(ffi.cast("uint64_t", p)) for p in (tasks, ins, outs)]
    raw = struct.pack("<QQQ4I", *at, *(values[k] for k in ("count", "task_size", "in", "out")))
    job = ffi.new("char[]", raw)
    address = int(ffi.cast("uint64_t", job)) if jobs is None else jobs
    driver.ioctl(SUBMIT_ROCKET, struct.pack("<QIIQ", address, job_count, size, reserved))


def test_what_submit_itself_refuses(driver):
    submit(driver, job_count=0, size=0, reserved=9)  # a job without tasks is not checked
    for fields, error in (
        ({"size": 39}, "EINVAL"),
        ({"reserved": 1}, "EINVAL"),
        ({"jobs": 8}, "EFAULT"),
        ({"jobs": 0}, "EFAULT"),
        ({"jobs": -1 & (1 << 64) - 1}, "EFAULT"),
    ):
        with pytest.raises(OSError, match=error):
            submit(driver, **fields)


BAD_JOBS = {
    "no tasks": {"count": 0},
    "short tasks": {"task_size": 7},
    "a task of no words": {"tasks": struct.pack("<II", 0x10000000, 0)},
    "unknown input": {"ins": [77]},
    "unknown output": {"outs": [77]},
    "more handles than there is memory": {"in": 0xFFFFFFFF, "out": 0xFFFFFFFF},
    "more tasks than there is memory": {"count": 0xFFFFFFFF},
}


@pytest.mark.parametrize("case", BAD_JOBS)
def test_a_job_that_is_refused_is_a_success_with_stale_output(bench, case):
    """The kernel drops the error of each job, so only the output shows it."""
    bench.fill()
    good = {
        "tasks": struct.pack("<II", bench.list.iova, 126),
        "ins": [bench.list.handle, bench.a.handle, bench.b.handle],
        "outs": [bench.c.handle],
    }

    submit(bench.driver, **good | BAD_JOBS[case])

    bench.c.prep(0)
    assert bench.untouched()
    submit(bench.driver, **good)
    bench.c.prep()
    assert not bench.untouched()


def test_a_buffer_that_is_input_and_output_keeps_the_job_from_running(bench):
    bench.fill()

    bench.driver.run([(bench.list.iova, 126)], [bench.list, bench.a, bench.b, bench.c], [bench.c])

    assert bench.untouched()
    assert client.report()["refused"] == 0


def test_an_output_that_the_job_does_not_list_is_refused(bench):
    other = bench.driver.create(64)
    bench.fill()

    bench.driver.run([(bench.list.iova, 126)], [bench.list, bench.a, bench.b], [other])

    assert bench.untouched()
    assert "does not list" in client.report()["last_refusal"]


def test_what_is_read_need_not_be_listed(bench):
    """The kernel maps all buffers of a file; lists are for fences.  Mesa lists only features."""
    bench.driver.run([(bench.list.iova, 126)], [], [bench.c])

    np.testing.assert_array_equal(bench.output(), exact(TASK, *operands(TASK)))


def test_tasks_of_a_job_run_one_after_the_other(driver):
    tasks = [Task(4, 64, 64), Task(2, 32, 96, "native-w"), Task(1, 96, 32)]
    data = [operands(task) for task in tasks]
    benches = [Bench(driver, task, *each) for task, each in zip(tasks, data, strict=True)]

    driver.run(
        [(b.list.iova, len(b.words)) for b in benches],
        [x for b in benches for x in (b.list, b.a, b.b)],
        [b.c for b in benches],
    )

    for b, task, each in zip(benches, tasks, data, strict=True):
        np.testing.assert_array_equal(b.output(), exact(task, *each))


def test_a_failed_task_ends_its_job_but_not_the_next(driver):
    good = Bench(driver, TASK, *operands(TASK))
    after = Bench(driver, TASK, *operands(TASK))
    bad = Bench(driver, Task(4, 64, 64, changes={0x1100: 1}), *operands(TASK))
    for b in (good, after, bad):
        b.fill()
    lists = [(b.list.iova, 126) for b in (good, bad, after)]

    driver.run(lists, [x for b in (good, bad, after) for x in (b.list, b.a, b.b)],
               [good.c, bad.c, after.c])  # fmt: skip

    assert [b.untouched() for b in (good, bad, after)] == [False, True, True]
    assert client.report()["last_refusal"].startswith("task 1: ")
    np.testing.assert_array_equal(after.run(), exact(TASK, *operands(TASK)))


def test_a_list_that_is_not_aligned_is_refused(bench):
    bench.list.bytes[8:] = bench.list.bytes[:-8].copy()
    bench.list.fini()
    bench.fill()

    bench.driver.run([(bench.list.iova + 8, 126)], [bench.list, bench.a, bench.b], [bench.c])

    assert bench.untouched()
    assert "16-byte aligned" in client.report()["last_refusal"]


def test_a_tail_that_does_not_lead_to_the_next_task_is_refused(bench):
    bench.put(lists.encode(bench.task, bench.list.iova, 126))
    bench.run()

    assert "the tail leads to" in client.report()["last_refusal"]


def test_a_tail_may_lead_to_the_next_task(driver):
    # As in Mesa's lists, although the driver starts each task.
    a, b = operands(TASK)
    bench = Bench(driver, TASK, a, b)
    end = lists.encode(bench.task)
    second = bench.list.iova + end.nbytes
    bench.put(np.concatenate([lists.encode(bench.task, second, len(end)), end]))
    bench.fill()

    tasks = [(bench.list.iova, len(end)), (second, len(end))]
    driver.submit(tasks, [bench.list, bench.a, bench.b], [bench.c])
    bench.c.prep()

    assert client.report()["refused"] == 0
    assert (bench.output() == exact(TASK, a, b)).all()


# --- fences ----------------------------------------------------------------------------------


def test_prep_waits_until_its_deadline_for_a_job_that_hangs(bench):
    client.configure("hang_ms=300 fault=timeout@submit")
    bench.fill()
    bench.start()

    with pytest.raises(OSError, match="EBUSY"):
        bench.c.prep(-1)
    with pytest.raises(OSError, match="ETIMEDOUT"):
        bench.c.prep(0.02)
    bench.a.prep(0.001)  # inputs have no fence
    bench.c.prep(10)  # the kernel has reset the core: success, and stale output

    assert bench.untouched()
    np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))


def test_a_hung_job_takes_as_long_as_the_kernel_waits(bench):
    client.configure("hang_ms=0 fault=timeout@submit")
    started = time.monotonic()
    bench.run()

    assert time.monotonic() - started >= 0.5


def jobs_end(benches, mhz):
    """Run a job of several tasks at a clock; return whether each task's output was written."""
    client.configure(f"rocket_mhz={mhz} log=0")
    for each in benches:
        each.fill()
    benches[0].driver.run(
        [(each.list.iova, len(each.words)) for each in benches],
        [x for each in benches for x in (each.list, each.a, each.b)],
        [each.c for each in benches],
    )
    return [not each.untouched() for each in benches]


def test_a_job_ends_when_all_its_tasks_together_take_longer_than_the_kernel_lets_them(driver):
    """The model: 16 bytes of features a cycle, then 85 % of 1024 products a cycle.

    A SUBMIT (52 us) and the start of the second task (60 us) are below the margin of one per cent
    on either side.
    """
    m, k, n = 256, 1024, 2048
    task = Task(m, k, n)
    cycles = m * k / 16 + m * k * n / 1024 / 0.85
    benches = [Bench(driver, task, *operands(task)) for _ in range(2)]
    alone = cycles / 0.5 / 1e6  # MHz at which the job takes 0.5 s

    assert jobs_end(benches[:1], 1.01 * alone) == [True]
    assert jobs_end(benches[:1], 0.99 * alone) == [False]
    assert f"more than 500 ms at {0.99 * alone:.0f} MHz" in client.report()["last_refusal"]
    assert jobs_end(benches, 2.02 * alone) == [True, True]
    assert jobs_end(benches, 1.98 * alone) == [True, False]
    assert client.report()["last_refusal"].startswith("task 1: ")


def test_three_files_run_on_three_cores(driver):
    others = [Rocket(), Rocket()]
    for each in (driver, *others):
        Bench(each, TASK, *operands(TASK)).run()
        Bench(each, TASK, *operands(TASK)).run()
    cores = client.report()["cores"]
    for each in others:
        each.close()

    assert [(c["core"], c["tasks"]) for c in cores] == [(0, 2), (1, 2), (2, 2)]


def test_a_copy_of_a_descriptor_keeps_the_file_open(bench):
    copy = os.dup(bench.driver.fd)
    bench.driver.close()
    bench.driver.fd = copy

    np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))


def test_files_of_others_are_none_of_its_business(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    ffi, lib, _ = client.simulator()
    with Rocket():
        fd = lib.open(str(path).encode(), os.O_RDWR)
        assert os.read(fd, 5) == b"hello"
        assert lib.ioctl(fd, CREATE_BO, ffi.new("char[64]")) == -1
        mapped = lib.mmap(ffi.NULL, 5, 3, 1, fd, 0)
        assert bytes(ffi.buffer(mapped, 5)) == b"hello"
        assert lib.close(fd) == 0
        assert lib.close(fd) == -1
