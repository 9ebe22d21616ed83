"""Test the vendor's driver: buffers, actions, chains, slots, fences and symptoms of hangs.

Source of the expected behaviour: rknpu_gem.c, rknpu_job.c and rknpu_drv.c of rknpu 0.9.8.
"""

import contextlib
import select
import struct

import numpy as np
import pytest

from tests.limits import eventually
from tests.sim_rknpu import client, lists
from tests.sim_rknpu.bench import Bench, exact, hangs, operands
from tests.sim_rknpu.client import (
    DATA,
    FENCE_IN,
    FENCE_OUT,
    LISTS,
    MEM_CREATE,
    MEM_DESTROY,
    MEM_MAP,
    MEM_SYNC,
    NONBLOCK,
    PC,
    PINGPONG,
    RKNPU_CARD,
    TASKS,
    Rknpu,
    entry,
)
from tests.sim_rknpu.lists import SHORT, Addition, Task

IOVA_ALIGNMENT = 0x400  # a flag of buffers that exists since 0.9.7

TASK = Task(4, 64, 64)
RESET, DRV_VERSION, GET_FREQ, IOMMU_EN = 6, 1, 2, 18


@pytest.fixture
def driver():
    with Rknpu() as opened:
        yield opened


@pytest.fixture
def bench(driver):
    return Bench(driver, TASK, *operands(TASK))


@pytest.mark.parametrize("node", [client.RKNPU_NODE, RKNPU_CARD])
def test_the_driver_says_its_name(node):
    with Rknpu(node) as driver:
        assert driver.version() == ((0, 9, 8), ["rknpu", "20240828", "RKNPU driver"])
        assert driver.action(DRV_VERSION) == 908
        assert driver.action(IOMMU_EN) == 1
        assert driver.action(GET_FREQ) == 1_000_000_000
    client.configure("version=10203")
    with Rknpu(node) as driver:
        assert driver.version()[0] == (1, 2, 3)


def test_actions_that_the_driver_does_not_have(driver):
    for number in (3, 5, 7, 20, 21, 99):
        with pytest.raises(OSError, match="EINVAL"):
            driver.action(number)
    with pytest.raises(OSError, match="EINVAL"):
        driver.action(25, 16)
    driver.action(25, 3)
    assert driver.action(24) == 3


def test_buffers_lie_apart_below_4_gib_and_are_shared_by_all_files(driver):
    with Rknpu(RKNPU_CARD) as other:
        first, second, third = driver.create(5000), other.create(64), driver.create(64, 0x20 | DATA)

        tops = [b.iova + 4096 * -(-len(b.bytes) // 4096) for b in (first, second, third)]
        assert tops[0] <= 1 << 32
        assert tops[1] <= first.iova - 4096
        assert tops[2] <= second.iova - 4096
    assert (first.bytes == 0xA5).all()
    assert not third.bytes.any()


def test_what_the_driver_refuses_of_buffers(driver):
    def create(flags=DATA, size=64, domain=0):
        driver.ioctl(MEM_CREATE, struct.pack("<IIQQQQiI", 0, flags, size, 0, 0, 0, domain, 0))

    for fields in ({"size": 0}, {"flags": 1 << 11}, {"domain": 16}, {"domain": -1}):
        with pytest.raises(OSError, match="EINVAL"):
            create(**fields)
    create(DATA | IOVA_ALIGNMENT)
    client.configure("version=906")
    with pytest.raises(OSError, match="EINVAL"):
        create(DATA | IOVA_ALIGNMENT)
    with pytest.raises(OSError, match="ENOMEM"):
        create(size=1 << 33)
    with pytest.raises(OSError, match="ENOENT"):
        driver.ioctl(MEM_MAP, struct.pack("<IIQ", 5, 0, 0))
    with pytest.raises(OSError, match="EINVAL"):
        driver.ioctl(MEM_DESTROY, struct.pack("<IIQ", 5, 0, 0))


def test_what_the_driver_refuses_to_synchronise(driver):
    uncached, cached = driver.create(64, LISTS), driver.create(64)

    def sync(obj):
        driver.ioctl(MEM_SYNC, struct.pack("<IIQQQ", 1, 0, obj, 0, 64))

    sync(cached.obj)
    for obj, error in ((0, "EINVAL"), (uncached.obj, "EINVAL"), (cached.obj + 1, "EFAULT")):
        with pytest.raises(OSError, match=error):
            sync(obj)


def test_a_client_of_an_older_driver_may_pass_a_shorter_struct(driver):
    """DRM truncates or pads structs; rknpu 0.9.2 had no domain and no core mask."""
    request = 0xC0000000 | 40 << 16 | 0x6442

    handle, *_ = struct.unpack(
        "<IIQQQQ", driver.ioctl(request, struct.pack("<IIQQQQ", 0, DATA, 64, 0, 0, 0))
    )

    assert handle == 1


# --- submit ----------------------------------------------------------------------------------


def test_a_job_says_what_it_did(bench):
    bench.run()

    counter, elapsed, fence = bench.driver.submit(bench.entries, 1)

    assert (counter, fence) == (1, -1)
    assert elapsed > 33_000  # ns; the time of a submit in the model
    assert struct.unpack("<8IQ", bench.entries.bytes)[5] == 0x100


def test_what_submit_refuses(bench):
    bench.run()
    for fields, error in (
        ({"count": 0}, "EINVAL"),
        ({"mask": 8}, "EINVAL"),
        ({"flags": PINGPONG}, "EINVAL"),
        ({"mask": 5}, "EINVAL"),
        ({"mask": 6}, "EINVAL"),
        ({"flags": PC | FENCE_IN, "fence_fd": 9999}, "EINVAL"),
        ({"slots": [(0, 52), *[(0, 0)] * 4]}, "EFAULT"),
        ({"slots": [(0xFFFFFFFF, 1), *[(0, 0)] * 4]}, "EFAULT"),
    ):
        with pytest.raises(OSError, match=error):
            bench.driver.submit(bench.entries, **{"count": 1} | fields)
    uncacheable = bench.driver.create(64, LISTS)
    with pytest.raises(OSError, match="EFAULT"):
        bench.driver.submit(uncacheable, 1)
    client.configure("cores=2")
    with pytest.raises(OSError, match="EINVAL"):
        bench.driver.submit(bench.entries, 1, mask=4)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"int_mask": 0x3}, "int_mask"),
        ({"enable_mask": 0xD}, "enable_mask"),
        ({"amount": 104}, "enable"),
        ({"amount": 126}, "amount"),
        ({"amount": 0x30000}, "regcfg_amount"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_entry_that_is_wrong_is_refused(bench, fields, reason):
    bench.fill()
    with hangs(bench.driver):
        bench.run(**fields)

    assert bench.untouched()
    assert reason in client.report()["last_refusal"]


class Chain:
    """Tasks in one buffer of lists; each list has the address of the next."""

    def __init__(self, driver, tasks):
        self.driver = driver
        self.data = [operands(task, seed) for seed, task in enumerate(tasks)]
        self.benches = [Bench(driver, t, *d) for t, d in zip(tasks, self.data, strict=True)]
        self.list = driver.create(1024 * len(tasks), LISTS)
        self.entries = driver.create(40 * len(tasks), TASKS)
        self.list.bytes[:] = 0
        self.link([(0, len(tasks))])

    def link(self, segments):
        """Chain each segment of (first, count) separately."""
        for first, count in segments:
            for i in range(first, first + count):
                last = i + 1 == first + count
                self.write(i, 0 if last else i + 1)

    def write(self, i, following):
        task = self.benches[i].task
        words = len(lists.encode(task))
        at = self.list.iova + 1024 * following if following else 0
        after = len(lists.encode(self.benches[following].task)) if following else 0
        raw = lists.encode(task, at, after).view(np.uint8)
        self.list.bytes[1024 * i :][: len(raw)] = raw
        packed = entry(self.list.iova + 1024 * i, words, task.enable)
        self.entries.bytes[40 * i :][:40] = np.frombuffer(packed, np.uint8)

    def check(self):
        for b, each in zip(self.benches, self.data, strict=True):
            b.c.prep()
            np.testing.assert_array_equal(b.output(), exact(b.task, *each))


CHAINED = [Task(4, 64, 64), Task(2, 96, 32, enable=SHORT), Task(1, 32, 96, "native-w")] * 2


def test_a_chain_runs_to_its_end(driver):
    chain = Chain(driver, CHAINED)

    assert driver.submit(chain.entries, 6)[0] == 6
    chain.check()


@pytest.mark.parametrize(("mask", "slots"), [(1, 0), (2, 1), (4, 2)])
def test_one_core_takes_its_own_slot(driver, mask, slots):
    chain = Chain(driver, CHAINED[:2])
    table = [(0, 0)] * 5
    table[slots] = (0, 2)

    driver.submit(chain.entries, 2, mask, table)

    chain.check()
    assert [c["core"] for c in client.report()["cores"]] == [slots]


def test_two_and_three_cores_take_the_slots_the_driver_gives_them(driver):
    chain = Chain(driver, CHAINED)
    chain.link([(0, 3), (3, 3)])
    driver.submit(chain.entries, 6, 3, [(0, 3), (3, 3), (0, 0), (0, 0), (0, 0)])
    chain.check()
    chain.link([(0, 1), (1, 2), (3, 3)])

    driver.submit(chain.entries, 6, 7, [(0, 0), (0, 0), (0, 1), (1, 2), (3, 3)])

    chain.check()
    assert [c["tasks"] for c in client.report()["cores"]] == [3 + 1, 3 + 2, 3]


def test_the_least_busy_core_takes_a_job_for_any(bench):
    bench.run()

    assert bench.driver.submit(bench.entries, 1, mask=0)[0] == 1


def broken(driver, change, count=3):
    """Run a chain of three tasks after *change*; return the driver's count and the reason."""
    chain = Chain(driver, CHAINED[:3])
    change(chain)
    with pytest.raises(OSError, match="ETIMEDOUT"):
        driver.submit(chain.entries, count)
    return client.report()["last_refusal"]


def test_the_log_counts_the_tasks_that_a_chain_had_done(driver, capfd):
    """The kernel's log counts them, too: rknpu_job.c of 0.9.8."""
    client.configure("log=1")
    broken(driver, lambda chain: chain.write(1, 0))

    said = capfd.readouterr().err
    assert "failed to wait job, task counter: 1," in said
    assert "require mask: 0x300, task counter: 0x1\n" in said


def test_a_chain_that_is_broken_stops(driver):
    assert "the chain ends here" in broken(driver, lambda c: c.write(1, 0))
    assert "the chain continues" in broken(driver, lambda c: None, count=2)
    assert "regcmd_addr" in broken(driver, lambda c: c.write(0, 2))

    def wrong_amount(chain):
        words = chain.list.bytes.view(np.uint64)
        words[128 * 0 + 123] += np.uint64(1 << 16)

    assert "amount" in broken(driver, wrong_amount)

    def unaligned(chain):
        chain.list.bytes.view(np.uint64)[122] += np.uint64(8 << 16)

    assert "the tail is" in broken(driver, unaligned)

    def no_address(chain):
        chain.list.bytes.view(np.uint64)[122] = 0

    assert "a chain needs an address and an amount" in broken(driver, no_address)


class LongChain:
    """A task repeated more often than the hardware counts; the driver starts the rest again."""

    COUNT, START = 4100, 4095
    TASK = Task(1, 32, 32)

    def __init__(self, driver):
        self.driver = driver
        self.bench = Bench(driver, self.TASK, *operands(self.TASK))
        self.lists = driver.create(1024 * self.COUNT, LISTS)
        self.entries = driver.create(40 * self.COUNT, TASKS)
        self.words = self.lists.bytes.view(np.uint64).reshape(self.COUNT, 128)
        addresses = self.lists.iova + 1024 * np.arange(self.COUNT, dtype=np.uint64)
        self.words[:] = 0
        self.words[:, :126] = self.bench.words
        following = lists.PC << 48 | addresses[1:] << np.uint64(16) | np.uint64(0x10)
        self.words[:-1, 122] = following
        self.words[:-1, 123] = lists.word(lists.PC, 0x14, lists.amount(126))
        self.end(self.START - 1)
        rows = np.tile(np.frombuffer(entry(0, 126), np.uint8), (self.COUNT, 1))
        rows.view(np.uint64)[:, 4] = addresses
        self.entries.bytes[:] = rows.ravel()

    def end(self, task):
        self.words[task, 122:124] = [0, lists.word(lists.PC, 0x14, 0)]

    def reuse(self, task):
        word = self.words[task, 12]
        assert word & 0xFFFF == 0x1040
        self.words[task, 12] = word | np.uint64(0x2000 << 16)


def test_more_tasks_than_the_hardware_counts_are_started_in_parts(driver):
    chain = LongChain(driver)

    assert driver.submit(chain.entries, chain.COUNT)[0] == chain.COUNT
    np.testing.assert_array_equal(chain.bench.output(), exact(chain.TASK, *operands(chain.TASK)))


@pytest.mark.parametrize(("task", "runs"), [(4094, True), (4095, False)])
def test_nothing_is_reused_across_two_starts(driver, task, runs):
    chain = LongChain(driver)
    chain.reuse(task)

    with contextlib.nullcontext() if runs else hangs(driver):
        driver.submit(chain.entries, chain.COUNT)

    assert runs or "task 4095: " in client.report()["last_refusal"]


@pytest.mark.parametrize("what", ["weights", "features"])
def test_reuse_is_for_the_next_task_of_a_chain_with_the_same_bytes(driver, what):
    first, bit = Task(4, 64, 64), {"weights": 0x2000, "features": 0x1000}[what]
    chain = Chain(driver, [first, Task(4, 64, 64, reuse=bit)])
    same = {"weights": "b", "features": "a"}[what]
    one, two = chain.benches
    shared = getattr(one, same)
    two.task = Task(**vars(two.task) | {same: shared.iova})
    chain.link([(0, 2)])
    driver.submit(chain.entries, 2)
    a, b = chain.data[1]
    a, b = (a, chain.data[0][1]) if what == "weights" else (chain.data[0][0], b)
    np.testing.assert_array_equal(two.output(), exact(two.task, a, b))

    two.task = Task(**vars(two.task) | {same: getattr(two, same).iova})
    chain.link([(0, 2)])
    with pytest.raises(OSError, match="ETIMEDOUT"):
        driver.submit(chain.entries, 2)

    assert {"weights": "WEIGHT_REUSE", "features": "DATA_REUSE"}[what] in (
        client.report()["last_refusal"]
    )


# --- the addition of the DPU alone -----------------------------------------------------------


@pytest.mark.parametrize("to", [4, 5], ids=["int32", "fp32"])
@pytest.mark.parametrize(("rows", "channels"), [(1, 4), (5, 64), (16, 1024)])
def test_a_flying_addition(driver, rows, channels, to):
    rng = np.random.default_rng(0)
    x, y = rng.integers(-(2**31), 2**31, (2, channels // 4, rows, 4))
    a, b = (driver.buffer(v.astype(np.int32).view(np.uint8).ravel()) for v in (x, y))
    entries, words = driver.create(40, TASKS), driver.create(2048, LISTS)
    program = lists.encode(Addition(rows, channels, a.iova, b.iova, a.iova, to))
    words.bytes[:] = 0
    words.bytes[: program.nbytes] = program.view(np.uint8)
    raw = entry(words.iova, len(program), lists.FLYING)
    entries.bytes[:] = np.frombuffer(raw, np.uint8)

    driver.submit(entries, 1)

    a.prep()
    want = np.clip(x + y, -(2**31), 2**31 - 1)
    out_type = np.int32 if to == 4 else np.float32
    np.testing.assert_array_equal(a.bytes.view(out_type).reshape(x.shape), want.astype(out_type))


# --- hangs and fences --------------------------------------------------------------------------


def test_the_driver_resets_what_hangs_and_counts_the_tasks_before(driver):
    chain = Chain(driver, CHAINED[:3])
    chain.benches[2].task = Task(**vars(chain.benches[2].task) | {"changes": {0x1100: 1}})
    chain.link([(0, 3)])
    chain.benches[2].fill()

    with pytest.raises(OSError, match="ETIMEDOUT"):
        driver.submit(chain.entries, 3)

    assert struct.unpack_from("<5I", driver.left)[4] == 2
    assert client.report()["last_refusal"].startswith("task 2: ")
    assert chain.benches[2].untouched()
    chain.data, chain.benches = chain.data[:2], chain.benches[:2]
    chain.check()


def test_a_job_nobody_waits_for_signals_a_fence(bench):
    bench.run()
    bench.fill()

    *_, fence = bench.driver.submit(bench.entries, 1, flags=PC | PINGPONG | NONBLOCK | FENCE_OUT)

    assert select.select([fence], [], [], 60)[0] == [fence]
    bench.c.prep()
    np.testing.assert_array_equal(bench.output(), exact(TASK, *operands(TASK)))
    bench.driver.submit(bench.entries, 1, flags=PC | FENCE_IN, fence_fd=fence)
    bench.driver.lib.close(fence)


def until_refused(count):
    assert eventually(lambda: client.report()["refused"] >= count)


def test_a_job_nobody_waits_for_hangs_until_the_next_or_a_reset(bench):
    bench.run()
    flags = PC | NONBLOCK | FENCE_OUT
    client.configure("fault=timeout@submit")
    *_, hung = bench.driver.submit(bench.entries, 1, flags=flags)
    until_refused(1)
    *_, fence = bench.driver.submit(bench.entries, 1, flags=flags)
    assert select.select([fence], [], [], 60)[0] == [fence]
    client.configure("fault=timeout@submit")
    *_, other = bench.driver.submit(bench.entries, 1, flags=flags)
    until_refused(2)
    bench.driver.action(RESET)

    bench.driver.submit(bench.entries, 1)

    assert select.select([hung, other], [], [], 0)[0] == []  # a failed job signals no fence
    for fd in (hung, fence, other):
        bench.driver.lib.close(fd)


def test_a_job_behind_one_that_hangs_gives_up(bench):
    bench.run()
    client.configure("fault=timeout@submit")
    *_, fence = bench.driver.submit(bench.entries, 1, flags=PC | NONBLOCK | FENCE_OUT)
    bench.fill()

    with pytest.raises(OSError, match="EINVAL"):
        bench.driver.submit(bench.entries, 1)

    assert bench.untouched()
    np.testing.assert_array_equal(bench.run(), exact(TASK, *operands(TASK)))
    bench.driver.lib.close(fence)


def test_other_cores_go_on_while_one_hangs(driver):
    chain = Chain(driver, CHAINED[:2])
    chain.link([(0, 1), (1, 1)])
    client.configure("fault=timeout@submit")
    slots = [(0, 1), (1, 1), (0, 0), (0, 0), (0, 0)]
    *_, fence = driver.submit(chain.entries, 1, slots=slots, flags=PC | NONBLOCK | FENCE_OUT)
    until_refused(1)

    driver.submit(chain.entries, 1, mask=2, slots=slots)

    chain.data, chain.benches = chain.data[1:], chain.benches[1:]
    chain.check()
    driver.lib.close(fence)
