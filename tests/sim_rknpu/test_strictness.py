"""Test that the simulator refuses lists that hardware does not run, and names the error."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.sim_rknpu import client, lists, mutation
from tests.sim_rknpu.bench import Bench, exact, hangs, operands
from tests.sim_rknpu.lists import FLYING, SHORT, Task

DATA = Path(__file__).parents[1] / "data/rknpu"


# Flips after which hardware would run the list, too: fewer weight banks or more entries than usual,
# another form of filler, DPU_RDMA written but not enabled, its float conversion while it is off.
HARMLESS = {
    *((0x1040, bit) for bit in range(20, 24)),
    *((0x1044, bit) for bit in range(16, 30)),
    (0, 48),
    (8, 20),
    (0x5044, 19),
}


@pytest.mark.parametrize(
    "name", ["int8 row 4x64x64", "int8 native-h 64x64x64, short", "fp16 to fp16 native-w 3x64x32"]
)
def test_almost_every_flipped_bit_shows(name):
    client.configure("hang_ms=0.01")

    count = mutation.measure(*mutation.PROGRAMS[name])

    assert count.tried > 6000
    assert count.share >= 0.99  # the required rate is 0.97
    assert {(word & 0xFFFF, bit) for word, _, bit in count.missed} <= HARMLESS


def refusal(driver, task, change=None):
    """Run a list that must be refused; check that the output is unchanged; return the reason."""
    bench = Bench(driver, task, *operands(task))
    if change:
        bench.put(change(bench.words))
    bench.fill()
    with hangs(driver):
        bench.run()
    assert bench.untouched()
    return refused()


BAD_VALUES = {
    "CBUF: too few data banks": (Task(126, 2080, 32), {0x1040: 0x48}, "CNA_CBUF_CON0"),
    "CBUF: weights do not fit": (Task(1, 8192, 32), {0x1040: 0x74}, "CNA_CBUF_CON0"),
    "CBUF: thirteen banks": (Task(4, 64, 64), {0x1040: 0xC1}, "more than 12 banks"),
    "entries of a line": (Task(4, 96, 64), {0x1044: 1}, "CNA_CBUF_CON1"),
    "grains": (Task(64, 64, 64), {0x1010: 64 << 4}, "CNA_CONV_CON2"),
    "N is no multiple": (Task(4, 64, 64), {0x1038: 0x01010030}, "CNA_WEIGHT_SIZE2"),
    "N is too large": (Task(1, 32, 8224), {}, "undefined bits"),
    "K is nothing": (
        Task(4, 64, 64),
        {0x1024: 0, 0x1030: 0, 0x1034: 0, 0x1088: 0},
        "CNA_DATA_SIZE1",
    ),
    "K is no multiple": (
        Task(4, 64, 64),
        {0x1024: 0x002F0030, 0x1030: 48 * 64, 0x1034: 48, 0x1088: 48},
        "CNA_DATA_SIZE1",
    ),
    "more lines than can be said": (Task(1023, 32, 32), {0x1010: 1023 << 4}, "CNA_CONV_CON2"),
    "compressed weights": (Task(4, 64, 64), {0x1100: 1}, "CNA_DCOMP_CTRL"),
    "a converter that is on": (Task(4, 64, 64), {0x104C: 0xA}, "CNA_CVT_CON0"),
    "precisions differ": (Task(4, 64, 64), {0x3010: 0x200}, "CORE_MISC_CFG"),
    "SIZE_E of the wrong type": (Task(4, 64, 64), {0x4050: 0x36E}, "DPU_BS_OW_CFG"),
    "notches differ": (Task(4, 64, 64), {0x4038: 0x000F000E}, "DPU_DATA_CUBE_NOTCH"),
    "output cube too small": (Task(4, 64, 64), {0x4034: 2}, "DPU_DATA_CUBE"),
    "output scale": (Task(4, 64, 64), {0x4084: 2}, "DPU_OUT_CVT_SCALE"),
    "bias stage": (Task(4, 64, 64), {0x4040: 0x20150}, "DPU_BS_CFG"),
    "pointer": (Task(4, 64, 64), {0x4004: 0xF}, "DPU_S_POINTER"),
    "the MRDMA trap": (Task(4, 64, 64), {0x5044: 0x7800}, "MRDMA_DISABLE"),
    "undefined bits": (Task(4, 64, 64), {0x1028: 0x10001}, "undefined bits"),
    "weights reused by nobody": (Task(4, 64, 64, reuse=0x2000), {}, "WEIGHT_REUSE"),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_value_that_does_not_work_is_refused(driver, case):
    task, changes, reason = BAD_VALUES[case]

    assert reason in refusal(driver, replace(task, changes=changes))


# Registers with the same information: if one is wrong, the error may name any of them.
SAME = [
    {0x1020, 0x1028, 0x102C, 0x1084, 0x3014, 0x4030, 0x4034, 0x405C, 0x500C, 0x5010},
    {0x1024, 0x1030, 0x1034, 0x1088},
    {0x1038, 0x3018, 0x403C, 0x4058, 0x5014},
    {0x4024, 0x40C0},
    {0x100C, 0x3010, 0x4010},
]
ELSEWHERE = {
    0x1070,
    0x1080,
    0x107C,
    0x1110,
    0x4020,
}  # addresses, because another address is valid, too
BITS = {0x3010: 8, 0x4024: 4, 0x4050: 2, 0x40C0: 4, 0x5040: 4, 0x504C: 4, 0x506C: 4, 0x5034: 28,
        0x501C: 1, 0x5028: 1, 0x410C: 8, 0x1014: 3, 0x1024: 5}  # fmt: skip


@pytest.mark.parametrize("mode", ["row", "native-w"])
def test_the_register_that_is_wrong_is_named(mode):
    task = Task(4, 64, 64, mode)
    named = {}
    with client.Rknpu() as driver:
        bench = Bench(driver, task, *operands(task))
        for _, offset, value in bench.task.registers():
            changes = {
                offset: 0 if offset in (0x1010, 0x1044) else value ^ 1 << BITS.get(offset, 0)
            }
            if offset not in ELSEWHERE:
                bench.put(lists.encode(replace(bench.task, changes=changes)))
                with hangs(driver):
                    bench.run()
                named[offset] = int(re.search(r"(0x[0-9a-f]{4}) ", refused()).group(1), 16)

    assert len(named) == 122 - len(ELSEWHERE)
    assert not {
        hex(offset): hex(name)
        for offset, name in named.items()
        if name != offset and not any({offset, name} <= group for group in SAME)
    }


def refused():
    return client.report()["last_refusal"]


def without(offset):
    """Remove the write of a register."""
    return lambda words: words[(words & np.uint64(0xFFFF)) != np.uint64(offset)]


def with_word(position, word):
    return lambda words: np.insert(words, position, np.uint64(word))


BAD_LISTS = {
    "a register that is not written": (without(0x1078), "0x1078 CNA_DMA_CON0 is not written"),
    "an unknown register": (with_word(9, lists.word(lists.CNA, 0x1018, 0)), "no such register"),
    "another block's": (with_word(9, lists.word(lists.CNA, 0x4014, 0)), "no such register"),
    "an unknown block": (with_word(9, lists.word(0x4101, 0x6010, 0)), "no such register"),
    "written after the enable": (
        lambda w: np.append(w, np.uint64(lists.word(lists.CNA, 0x1014, 9))),
        "after the enable",
    ),
    "no marker": (lambda w: np.delete(w, -2), "enable without the marker"),
    "no amount": (lambda w: np.delete(w, -3), "marker"),
    "no enable": (lambda w: w[:-2], "no enable"),
    "an enable of other blocks": (
        lambda w: np.append(w[:-1], np.uint64(lists.word(lists.ENABLE, 8, 0x7D))),
        "enable is not one of",
    ),
    "a pooling without its registers": (
        lambda w: np.append(w[:-1], np.uint64(lists.word(lists.ENABLE, 8, 0x60))),
        "PPU_S_POINTER is not written",
    ),
    "an addition without its registers": (
        lambda w: np.append(w[:-1], np.uint64(lists.word(lists.ENABLE, 8, FLYING))),
        "another value is not known to work",
    ),
}


@pytest.mark.parametrize("case", BAD_LISTS)
def test_a_list_that_is_not_one_is_refused(case):
    change, reason = BAD_LISTS[case]
    with client.Rocket() as driver:
        assert reason in refusal(driver, Task(4, 64, 64), change)


def test_filler_in_and_after_a_list_is_not_a_command():
    filler = np.array([0, 1 << 48], np.uint64)
    task = Task(4, 64, 64)
    a, b = operands(task)
    with client.Rocket() as driver:
        bench = Bench(driver, task, a, b)
        bench.put(np.concatenate([bench.words[:5], filler, bench.words[5:], filler]))

        np.testing.assert_array_equal(bench.run(), exact(task, a, b))


STRAY = {
    "features": ({0x1070: 64 * 4}, "features"),
    "features between two buffers": ({0x1070: 1024}, "features"),
    "features that wrap": ({0x1080: 0x0FFFF000}, "features"),
    "weights": ({0x1110: 32}, "weights"),
    "output": ({0x4020: 16}, "output"),
    "an address that is no multiple of 16": ({0x4020: 8}, "DPU_DST_BASE_ADDR"),
    "surfaces of the output that overlap": ({0x4038: 0x000E000E}, "overlap"),
}


@pytest.mark.parametrize("case", STRAY)
def test_a_byte_outside_a_buffer_is_a_fault(driver, case):
    changes, reason = STRAY[case]
    task = Task(4, 64, 64)
    bench = Bench(driver, task, *operands(task))
    base = {0x1070: bench.a.iova, 0x1110: bench.b.iova, 0x4020: bench.c.iova}
    changes = {offset: base.get(offset, 0) + value for offset, value in changes.items()}
    bench.put(lists.encode(replace(bench.task, changes=changes)))
    bench.fill()

    with hangs(driver):
        bench.run()

    assert reason in refused()
    assert bench.untouched()


def test_the_output_may_not_be_what_is_read(driver):
    task = Task(1, 128, 32)
    bench = Bench(driver, task, *operands(task))
    for target in (bench.b, bench.list):
        bench.put(lists.encode(replace(bench.task, c=target.iova)))
        with hangs(driver):
            bench.run()
        assert refused().startswith("task 0: output")


def test_published_points_of_the_on_chip_buffer_agree():
    """Numbers of banks that worked on hardware are accepted; those that failed are refused."""
    table = json.loads((DATA / "cbuf_cases.json").read_text())
    client.configure("hang_ms=0.01")
    outputs = {"int8": "int32", "fp16": "fp32", "tf32": "fp32"}
    wrong = []
    for dtype, m, k, data, weight, observed, _source in table["cases"]:
        banks = {0x1040: weight << 4 | data}
        task = Task(m, k, 64 // 2, "row", (dtype, outputs[dtype]), changes=banks)
        with client.Rocket() as driver:
            a, b = (np.zeros((rows, k), lists.TYPES[dtype].dtype) for rows in (m, task.n))
            bench = Bench(driver, task, a, b)
            bench.fill()
            ran = not bench.run().any()
        if ran != (observed == "ok"):
            wrong.append((dtype, m, k, data, weight, observed, refused()))
    assert len(table["cases"]) == 173
    assert not wrong, "\n".join(map(str, wrong))


# --- strict=0, for programs of others -----------------------------------------------------------


def test_a_short_list_needs_the_other_block_written_once_on_rocket():
    """Without DPU_RDMA, lists are reported to time out on rocket; the vendor's have none."""
    task = Task(4, 64, 64, enable=SHORT)
    with client.Rknpu() as driver:
        bench = Bench(driver, task, *operands(task))
        np.testing.assert_array_equal(bench.run(), exact(task, *operands(task)))
    with client.Rocket() as driver:
        assert "DPU_RDMA" in refusal(driver, task)
        client.configure("strict=0")
        bench = Bench(driver, task, *operands(task))
        np.testing.assert_array_equal(bench.run(), exact(task, *operands(task)))


def test_a_register_left_out_keeps_what_the_last_task_left(driver):
    """With strict=0, as on hardware, the list works until another program sets the register."""
    client.configure("strict=0")
    task = Task(4, 64, 64)
    a, b = operands(task)
    bench, other = (
        Bench(driver, task, a, b),
        Bench(driver, replace(task, changes={0x1064: 1}), a, b),
    )
    bench.put(without(0x1064)(bench.words))

    np.testing.assert_array_equal(bench.run(), exact(task, a, b))
    with hangs(driver):
        other.run()
    with hangs(driver):
        bench.run()

    assert "0x1064 CNA_FC_CON1 = 0x1" in refused()
