"""Test that counters are exact, and that the time model gives the published figures."""

import json
from dataclasses import replace

import pytest

from tests.sim_rknpu import client, lists
from tests.sim_rknpu.bench import Bench, hangs, operands
from tests.sim_rknpu.client import Rknpu, Rocket, entry
from tests.sim_rknpu.lists import Task


def test_a_task_is_counted(driver):
    task = Task(4, 64, 96)
    Bench(driver, task, *operands(task)).run()

    report = client.report()

    name = "rocket" if isinstance(driver, Rocket) else "rknpu"
    assert report["submits"] == {"rocket": 0, "rknpu": 0} | {name: 1}
    assert report["jobs"][name] == 1
    (core,) = report["cores"]
    assert (core["tasks"], core["words"], core["macs"]) == (1, 126, 4 * 64 * 96)
    assert core["mac_cycles"] == 4 * 2 * 3
    assert core["bytes"] == {"features": 4 * 64, "weights": 64 * 96, "outputs": 4 * 4 * 96}
    (last,) = report["last_tasks"]
    assert last["task"] == "int8 m 4 k 64 n 96"
    assert last["bytes"] == 4 * 64 + 64 * 96 + 4 * 4 * 96
    client.configure("counters=0")
    assert client.report()["cores"] == []


def test_only_the_last_tasks_are_listed():
    task = Task(1, 32, 32)
    with Rocket() as driver:
        bench = Bench(driver, task, *operands(task))
        for _ in range(40):
            bench.run()

    report = client.report()

    assert len(report["last_tasks"]) == 32
    assert report["cores"][0]["tasks"] == 40


def test_a_report_is_cut_to_its_room():
    ffi, lib, _ = client.simulator()
    text = ffi.new("char[32]", b"." * 31)
    whole = lib.rknpu_sim_report(ffi.NULL, 0)

    assert lib.rknpu_sim_report(text, 8) == whole
    assert ffi.string(text) == b'{"note"'
    assert bytes(ffi.buffer(text, 32))[8:] == b"." * 23 + b"\0"


def test_a_refusal_is_text_that_json_can_hold(driver):
    task = Task(4, 64, 64, changes={0x1100: 1})
    bench = Bench(driver, task, *operands(task))
    with hangs(driver):
        bench.run()

    assert json.dumps(client.report()["last_refusal"]).isascii()


# RockNPU measured 0.399, 0.18 and 0.125 ms.
@pytest.mark.parametrize(("mhz", "ms"), [(200, 0.3267), (600, 0.1436), (700, 0.1307)])
def test_the_model_of_a_lone_float_task(mhz, ms):
    """It takes 52 us for the submit, 256 KiB of features, and 32768 cycles at 85 % of the peak.

    Features are read at 16 bytes a cycle or 11.1 GB/s; 128 KiB of weights and 64 KiB of results are
    transferred during the products.  One core cannot use the whole memory bandwidth, and another
    open device would use a part of it.
    """
    client.configure(f"rocket_mhz={mhz} total_gbs=1000")
    task = Task(256, 512, 128, "native-w", ("fp16", "fp16"))
    with Rocket() as driver:
        Bench(driver, task, *operands(task)).run()

    assert client.report()["cores"][0]["model_ns"] == pytest.approx(ms * 1e6, rel=0.005)


def test_the_model_of_three_cores_that_share_the_memory():
    """For int4 1x2048x16384, happyme531 measured 0.587 ms.

    The model: 50 us for the submit, 3 x 5.6 MB of weights and 11 KB of results at 27.5 GB/s; N is
    rounded up to three multiples of 64.
    """
    task = Task(1, 2048, 5504, "native-w", ("int4", "int16"))
    with Rknpu() as driver:
        benches = [Bench(driver, task, *operands(task)) for _ in range(3)]
        entries = driver.create(120, client.TASKS)
        raw = b"".join(entry(b.list.iova, 126) for b in benches)
        entries.bytes[:] = memoryview(raw)
        slots = [(0, 0), (0, 0), (0, 1), (1, 1), (2, 1)]

        _, elapsed, _ = driver.submit(entries, 3, 7, slots)

    assert elapsed == pytest.approx(0.6661e6, rel=0.001)


def test_chained_tasks_hide_their_transfers_behind_the_products():
    """262144 cycles of products at 85 % of the peak are 308 us; transfers would take 295 us.

    In a chain, 10 us pass before the next task starts; a lone task waits 12 us for its features.
    """
    task = Task(128, 1024, 2048, "native-w", ("int8", "int32"))
    shares = []
    with Rknpu() as driver:
        benches = [Bench(driver, task, *operands(task)) for _ in range(2)]
        entries = driver.create(80, client.TASKS)
        benches[0].put(lists.encode(benches[0].task, benches[1].list.iova, 126))
        for count, first in ((2, 0), (1, 1)):
            raw = b"".join(entry(b.list.iova, 126) for b in benches[first:])
            entries.bytes[: len(raw)] = memoryview(raw)
            driver.submit(entries, count)
            shares.append(client.report()["last_tasks"][-1]["model_mac_utilisation"])

    assert shares == [pytest.approx(0.8233, abs=0.0002), pytest.approx(0.8187, abs=0.0002)]


def test_a_group_of_kernels_waits_for_the_one_before_when_cbuf_has_no_room_for_two(driver):
    """With K = 4096, a group of kernels takes 4 banks (128 KiB); 64 rows leave 4, 32 rows 8."""
    shares = []
    for rows in (64, 32):
        task = Task(rows, 4096, 512)
        Bench(driver, task, *operands(task)).run()
        shares.append(client.report()["last_tasks"][-1])

    ns_of = [rows * 16 * 128 / 0.85 for rows in (64, 32)]  # products of a core at 1 GHz
    mhz, bytes_ns = (200, 3.2) if isinstance(driver, Rocket) else (1000, 11.1)
    weights = 4096 * 512 / bytes_ns
    features, results = (4096 / bytes_ns, 4 * 512 / bytes_ns)
    whole, half = (each["model_ns"] for each in shares)
    assert whole == pytest.approx(64 * features + ns_of[0] * 1000 / mhz + weights, abs=1)
    busy = max(ns_of[1] * 1000 / mhz, weights + 32 * results)
    assert half == pytest.approx(32 * features + busy, abs=1)


@pytest.mark.parametrize("bit", [0x1000, 0x2000], ids=["features", "weights"])
def test_what_is_reused_is_not_moved_again(bit):
    task = Task(4, 64, 64)
    with Rknpu() as driver:
        first, second = (Bench(driver, task, *operands(task)) for _ in range(2))
        again = replace(first.task, c=second.c.iova, reuse=bit)
        second.put(lists.encode(again))
        first.put(lists.encode(first.task, second.list.iova, 126))
        entries = driver.create(80, client.TASKS)
        raw = entry(first.list.iova, 126) + entry(second.list.iova, 126)
        entries.bytes[:] = memoryview(raw)
        driver.submit(entries, 2)

    moved = client.report()["cores"][0]["bytes"]
    assert moved["features"] == 4 * 64 * (1 if bit == 0x1000 else 2)
    assert moved["weights"] == 64 * 64 * (1 if bit == 0x2000 else 2)
