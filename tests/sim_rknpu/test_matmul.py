"""Test that the simulated NPU computes by the registers, exactly or within one rounding."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim_rknpu import lists
from tests.sim_rknpu.bench import Bench, as_float64, exact, operands
from tests.sim_rknpu.client import Rknpu, Rocket
from tests.sim_rknpu.lists import SHORT, Task

DATA = Path(__file__).parents[1] / "data/rknpu"

# happyme531 and mtx512 for int8 M=4 K=64 N=64, A, B, C at 0x1000000, 0x2000000, 0x3000000.
PUBLISHED = {
    "native-h": {0x100C: 0, 0x1010: 0x50, 0x1020: 0x10004, 0x1044: 1, 0x107C: 4, 0x1080: 0,
                 0x3014: 0x30000, 0x4024: 0x40, 0x4034: 3, 0x4038: 0, 0x40C0: 0x200},
    "native-w": {0x100C: 0, 0x1010: 0x20, 0x1020: 0x40001, 0x1044: 4, 0x1080: 0x0FFFFFF4,
                 0x3014: 3, 0x4024: 0x40, 0x4030: 3, 0x4038: 0, 0x405C: 3, 0x40C0: 0x200},
    "row": {0x100C: 0x20000000, 0x1010: 0x50, 0x1020: 0x10004, 0x1044: 1, 0x107C: 4, 0x1080: 0,
            0x3014: 0x30000, 0x4024: 0x10, 0x4034: 3, 0x4038: 0xF000F, 0x40C0: 0x80},
}  # fmt: skip
ALL_MODES = {0x1024: 0x003F0040, 0x102C: 4, 0x1030: 0x1000, 0x1034: 0x40, 0x1038: 0x01010040,
             0x1040: 0xB1, 0x403C: 0x003F003F, 0x4058: 0x3F}  # fmt: skip


@pytest.mark.parametrize("mode", PUBLISHED)
def test_the_lists_of_these_tests_have_the_published_values(mode):
    task = Task(4, 64, 64, mode, a=0x1000000, b=0x2000000, c=0x3000000)

    values = {offset: value for _, offset, value in task.registers()}

    wanted = ALL_MODES | PUBLISHED[mode]
    assert {offset: values[offset] for offset in wanted} == wanted
    assert len(lists.encode(task)) == 126


@pytest.mark.parametrize("mode", ["row", "native-w", "native-h"])
@given(m=st.integers(1, 40), k=st.integers(1, 12), n=st.integers(1, 6), seed=st.integers(0, 9))
def test_int8_products_are_exact(mode, m, k, n, seed):
    task = Task(m, 32 * k, 32 * n, mode)
    a, b = operands(task, seed)
    with Rocket() as driver:
        c = Bench(driver, task, a, b).run()

    np.testing.assert_array_equal(c, exact(task, a, b))


@pytest.mark.parametrize("n", [32, 64, 96, 4096])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 16])
def test_extreme_codes_do_not_overflow(driver, m, n):
    task = Task(m, 4096, n)
    a, b = np.full((m, 4096), -128, np.int8), np.full((n, 4096), -128, np.int8)

    c = Bench(driver, task, a, b).run()

    assert (c == 128 * 128 * 4096).all()


@pytest.mark.parametrize("panel", [8, 16])
def test_panels_of_rows(driver, panel):
    task = Task(2 * panel, 96, 64, f"panel{panel}")
    a, b = operands(task)

    np.testing.assert_array_equal(Bench(driver, task, a, b).run(), exact(task, a, b))


@given(k=st.integers(1, 20), seed=st.integers(0, 9))
def test_int4_products_saturate_at_16_bits(k, seed):
    task = Task(3, 32 * k, 64, "native-w", ("int4", "int16"))
    a, b = operands(task, seed)
    a[0] = b[0] = -8  # 64 * 512 is above the maximum by one
    with Rocket() as driver:
        c = Bench(driver, task, a, b).run()

    np.testing.assert_array_equal(c, np.clip(exact(task, a, b), -32768, 32767))


# --- floats --------------------------------------------------------------------------------

HALF_ULP = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}


def assert_rounded_once(c, task, a, b):
    """Check that |error| <= half a unit of the output plus the error of K double additions."""
    kind, to = task.types
    reference = exact(task, a, b)
    size = abs(as_float64(a, kind)) @ abs(as_float64(b, kind)).T
    bound = HALF_ULP[to] * abs(reference) + task.k * 2.0**-53 * size
    values = as_float64(c, to)
    bad = ~(abs(values - reference) <= bound)
    assert not bad.any(), f"{bad.sum()} of {bad.size} outside, first {values[bad][:3]}"


FLOATS = [types for types in lists.OUTPUTS if types[1] in HALF_ULP and types[0] != "int8"]


@pytest.mark.parametrize("types", FLOATS, ids="-".join)
@pytest.mark.parametrize("mode", ["row", "native-w", "native-h"])
def test_floats_are_rounded_once(driver, types, mode):
    task = Task(5, 96, 48, mode, types)
    a, b = operands(task)

    assert_rounded_once(Bench(driver, task, a, b).run(), task, a, b)


@pytest.mark.parametrize("to", ["fp32", "fp16"])
def test_integer_sums_become_floats(driver, to):
    task = Task(6, 4096, 32, "row", ("int8", to))
    a, b = operands(task)

    c = Bench(driver, task, a, b).run()

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(c, exact(task, a, b).astype(c.dtype))


def test_every_half_survives_a_product_with_one(driver):
    """Subnormals, zeros of both signs, infinities and NaN pass as float16 input and output."""
    halves = np.arange(0, 65536, dtype=np.uint16).view(np.float16)
    task = Task(64, 32, 32, "row", ("fp16", "fp16"))
    b = np.eye(32, dtype=np.float16)
    for part in halves.reshape(32, 64, 32):
        a = part.copy()
        finite = np.isfinite(a).all(axis=1, keepdims=True)
        a = np.where(finite, a, 0)  # 0 * infinity is NaN; such rows are checked below
        c = Bench(driver, task, a, b).run()
        np.testing.assert_array_equal(c, a)
    for special in (np.inf, -np.inf, np.nan):
        c = Bench(driver, task, np.full((64, 32), special, np.float16), np.ones_like(b)).run()
        np.testing.assert_array_equal(c, np.full((64, 32), special, np.float16))


def test_a_sum_too_large_for_a_half_is_infinite(driver):
    task = Task(1, 32, 32, "row", ("fp16", "fp16"))
    c = Bench(driver, task, *(np.full((r, 32), 60, np.float16) for r in (1, 32))).run()

    assert np.isposinf(c).all()


# --- tiles, and lists of other projects -----------------------------------------------------------


def test_tiles_of_rows_of_one_native_cube(driver):
    """happyme531 splits M=200 into 128 and 72 rows, each with the strides of the whole cube."""
    whole = Task(200, 64, 64, "native-w")
    a, b = operands(whole)
    bench = Bench(driver, whole, a, b)
    for first, rows in ((0, 128), (128, 72)):
        tile = Task(rows, 64, 64, "native-w", rows=200, a=bench.a.iova + 16 * first,
                    b=bench.b.iova, c=bench.c.iova + 16 * first)  # fmt: skip
        bench.put(lists.encode(tile))
        bench.run()

    np.testing.assert_array_equal(bench.output(), exact(whole, a, b))


def test_tiles_of_columns_of_one_row_major_matrix(driver):
    whole = Task(7, 64, 96)
    a, b = operands(whole)
    bench = Bench(driver, whole, a, b)
    for first in (0, 32, 64):
        tile = Task(7, 64, 32, columns=96, a=bench.a.iova, b=bench.b.iova + 64 * first,
                    c=bench.c.iova + 4 * first)  # fmt: skip
        bench.put(lists.encode(tile))
        bench.run()

    np.testing.assert_array_equal(bench.output(), exact(whole, a, b))


TYPES_OF_FORM = {
    "int8": ("int8", "int32"),
    "int4": ("int4", "int16"),
    "fp16": ("fp16", "fp32"),
    "fp16-fp16": ("fp16", "fp16"),
}


def foreign_programs():
    for project, function, form, shape, words in json.loads(
        (DATA / "foreign_words.json").read_text()
    )["programs"]:
        name = f"{project.split('/')[1].split()[0]}-{form}-{'x'.join(map(str, shape))}"
        yield pytest.param(form, shape, words, id=f"{function}-{name}")


@pytest.mark.parametrize(("form", "shape", "words"), list(foreign_programs()))
def test_the_words_of_public_generators_run_as_they_are(form, shape, words):
    """The programs ran on silicon; only the three addresses are changed."""
    m, k, n = shape
    short = len(words) == 108
    task = Task(m, k, n, "native-h", TYPES_OF_FORM[form], enable=SHORT if short else lists.FULL)
    a, b = operands(task)
    with Rknpu() as driver:
        bench = Bench(driver, task, a, b)
        ours = {0x1070: bench.a.iova, 0x1110: bench.b.iova, 0x4020: bench.c.iova}
        patched = [int(w, 16) for w in words]
        for i, w in enumerate(patched):
            if w & 0xFFFF in ours:
                patched[i] = lists.word(w >> 48, w & 0xFFFF, ours[w & 0xFFFF])
        bench.put(np.array(patched, np.uint64))
        c = bench.run()

    if task.types[1] in HALF_ULP:
        assert_rounded_once(c, task, a, b)
    else:
        np.testing.assert_array_equal(c, np.clip(exact(task, a, b), *limits(c.dtype)))


def limits(dtype):
    return np.iinfo(dtype).min, np.iinfo(dtype).max
