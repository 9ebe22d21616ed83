"""Tests of verification: a wrong product is replaced and reported, a right one passes."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.pool.table import RowTable
from npurt.device.verify import Check, Mode, Sampler, mode
from npurt.errors import NumericsError, SettingError, VerificationFailed
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.runtime.execute.host import HostStep
from npurt.runtime.execute.placement import Wanted, place
from npurt.runtime.execute.plan import Plan
from npurt.runtime.report.ledger import Ledger
from tests.cpu import cases
from tests.llm import tiny
from tests.runtime.fake import FakeDevice, Products

FORMATS = tuple(BY_NAME)
SCALES = np.array([0, 1, -0.5, 0.0123, 3.3e-3], np.float16)
KINDS = {"plain": 1, "outlier": 1, "small": 1e-12, "large": 1e12}


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(2) as device:
        yield device


def weight(rng, fmt, n, k, size=1.0):
    """Return a random tensor ``[n, k]`` whose values are of the order of *size*."""
    if BY_NAME[fmt].block == 1:
        return QTensor.quantize(size * rng.standard_normal((n, k)), fmt)
    return cases.weight(rng, fmt, n, k, (size * SCALES).astype(np.float16))


def activations(rng, m, k, kind="plain"):
    x = rng.standard_normal((m, k), dtype=np.float32)
    if kind == "outlier":
        x[:, rng.integers(k)] *= 1000  # as in a transformer's residual stream
    return x * np.float32(KINDS[kind])


def largest_hidden_error(tensor, x):
    """Return ``[M]``: for each row, the size of an error above which the check finds it.

    By verify.py, this is twice the bound over |r_n|, where |r_n| is from 1 to 2, and the bound is 8
    standard deviations of *roundings* roundings of u = 2^-24.  A margin covers the rounding of x to
    int8.
    """
    canonical = tensor.canonical()
    values = tensor.dequantize().astype(np.float64)
    group = 1 if tensor.format.block == 1 else canonical.group
    maximum = abs(values)
    if canonical.offsets is not None:
        offsets = np.repeat(canonical.offsets.astype(np.float64), group, axis=1)
        maximum = abs(values - offsets) + abs(offsets)
    roundings = 2 * 64 + 2 + 2 + values.shape[1] * (1 if group == 1 else 5 / group)
    squares = (4 * maximum**2 + 2.0**-149).sum()
    bound = 8 * 2.0**-24 * math.sqrt(roundings * squares)
    return 1.02 * 2 * bound * np.sqrt((x.astype(np.float64) ** 2).sum(axis=1))


# --- A device with wrong results ------------------------------------------------------------------


def flip(y, at, bit):
    y.reshape(-1).view(np.uint32)[at] ^= np.uint32(1 << bit)


@settings(max_examples=500)
@given(
    fmt=st.sampled_from(FORMATS),
    seed=st.integers(0, 2**32 - 1),
    m=st.sampled_from([1, 2, 7]),
    n=st.integers(1, 70),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 31),
    kind=st.sampled_from(list(KINDS)),
)
def test_every_flipped_bit_that_matters_is_caught_and_mended(
    cpu, fmt, seed, m, n, place, bit, kind
):
    rng = np.random.default_rng(seed)
    k = 2 * max(BY_NAME[fmt].block, 32)
    tensor, x = weight(rng, fmt, n, k), activations(rng, m, k, kind)
    clean = Products(cpu, tensor, x).run()
    at = int(place * clean.size)
    wrong = clean.copy()
    flip(wrong, at, bit)
    with np.errstate(all="ignore"):
        error = abs(wrong.astype(np.float64) - clean).reshape(-1)[at]
    assume(not error <= largest_hidden_error(tensor, x)[at // n])  # NaN is not a small error

    device = FakeDevice(cpu, meddle=lambda index, y: index == 0 and flip(y, at, bit))
    products = Products(cpu, tensor, x, device=device)

    np.testing.assert_array_equal(products.run(), clean)
    assert products.counts() == (1, 1, 1)
    report = products.ledger.report()
    assert "1 wrong" in report.line()
    assert "quarantined: fake computed a wrong product with the weight" in report.table()


GARBAGE = {  # every float32 of a result has these bits
    "a signalling NaN": 0x7FA00000,
    "a NaN": 0x7FC00000,
    "infinity": 0x7F800000,
    "the largest": 0x7F7FFFFF,
    "nobody wrote it": 0xA5A5A5A5,
}


@pytest.mark.parametrize("bits", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("biased", [False, True])
def test_a_result_that_is_garbage_is_mended_without_a_warning(cpu, bits, biased):
    """A check of garbage raises no warning; in tests, a warning is an error."""
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, "q8_0", 40, 64), activations(rng, 3, 64)
    bias = np.arange(40, dtype=np.float32) if biased else None

    def fill(index, y):
        y.view(np.uint32)[:] = bits

    products = Products(cpu, tensor, x, device=FakeDevice(cpu, meddle=fill), bias=bias)

    np.testing.assert_array_equal(products.run(), Products(cpu, tensor, x, bias=bias).run())
    assert products.counts() == (1, 1, 1)


def test_a_quarantined_weight_stays_on_the_cpu_and_the_ledger_says_why(cpu):
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, "q4_k", 40, 256), activations(rng, 3, 256)
    device = FakeDevice(cpu, meddle=lambda index, y: index == 1 and flip(y, 5, 30))
    bias = rng.standard_normal(40).astype(np.float32)
    products = Products(cpu, tensor, x, device=device, bias=bias)

    results = [products.run() for _ in range(4)]

    for y in results:
        np.testing.assert_array_equal(y, Products(cpu, tensor, x, bias=bias).run())
    assert device.products == 2
    first, second = products.ledger.report().rows
    assert (first.actual, first.calls, first.verified, first.failed) == ("fake", 2, 2, 1)
    assert (second.actual, second.calls, second.verified, second.failed) == ("cpu", 2, 2, 0)
    assert (second.planned, second.reason) == ("fake", "fake computed a wrong product with it")
    assert "1 fallbacks" in products.ledger.report().line()


def test_a_device_that_always_lies_in_one_weight_keeps_the_others(cpu):
    rng = np.random.default_rng(0)
    good, bad = weight(rng, "q8_0", 20, 64), weight(rng, "q4_0", 30, 64)
    device = FakeDevice(cpu, meddle=lambda index, y: y.shape[1] == 30 and flip(y, 0, 31))
    ledger = Ledger("test")
    plan = Plan(cpu, ledger, Sampler(Mode.ALWAYS))
    placed = place([Wanted("good", good), Wanted("bad", bad)], device, cpu)
    x = Products(cpu, good, activations(rng, 2, 64)).x
    y = np.empty((2, 50), np.float32)
    plan.matmul("both", x, placed, y)

    for _ in range(3):
        plan.redirect(y)
        plan.run(RowTable.of(2))

    assert {(r.tensor, r.actual): r.calls for r in ledger.report().rows} == {
        ("good", "fake"): 3,
        ("bad", "fake"): 1,
        ("bad", "cpu"): 2,
    }


def test_a_lie_that_the_cpu_repeats_is_an_error(cpu, monkeypatch):
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, "q8_0", 8, 64), activations(rng, 1, 64)
    device = FakeDevice(cpu, meddle=lambda index, y: flip(y, 3, 30))
    products = Products(cpu, tensor, x, device=device)
    good = cpu.pack

    def damaged(tensor):
        packed = good(tensor)
        packed.image.data[:] ^= 0x15
        return packed

    monkeypatch.setattr(cpu, "pack", damaged)

    with pytest.raises(VerificationFailed, match="wrong on fake and on the CPU"):
        products.run()


def test_without_verification_a_lie_goes_through(cpu):
    """Without the check a wrong product passes, which shows that the tests above can fail."""
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, "q8_0", 8, 64), activations(rng, 1, 64)
    device = FakeDevice(cpu, meddle=lambda index, y: flip(y, 3, 30))
    products = Products(cpu, tensor, x, device=device, sampler=Sampler(Mode.OFF))

    assert (products.run() != Products(cpu, tensor, x).run()).sum() == 1
    assert products.counts() == (1, 0, 0)


# --- Right products -------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_right_product_is_ever_called_wrong(cpu, fmt):
    """All of 20,480 rows pass; the probability of a false alarm is 3e-14 for each.

    They are 20 rows, times 16 formats, 2 sizes of weights, 4 kinds of activations, 2 precisions, 2
    implementations of the check, and 2 runs.
    """
    rng = np.random.default_rng(FORMATS.index(fmt))
    k = 2 * max(BY_NAME[fmt].block, 32)
    shapes = [(1, 40, k), (9, 1200, k), (10, 17, 4 * k)]
    for size, kind, (m, n, k), int16 in itertools.product(
        [1e-4, 1.0], KINDS, shapes, [False, True]
    ):
        tensor, x = weight(rng, fmt, n, k, size), activations(rng, m, k, kind)
        on_host = Products(cpu, tensor, x, int16=int16)
        elsewhere = Products(cpu, tensor, x, device=FakeDevice(cpu))
        for products in (on_host, elsewhere):
            for _ in range(2):
                products.run()
            assert products.counts() == (2, 2, 0), (size, kind, m, n, k, int16)


@pytest.mark.parametrize("fmt", ["f32", "bf16"])
def test_weights_whose_squares_float32_cannot_hold_are_right_too(cpu, fmt):
    rng = np.random.default_rng(0)
    for size, m in itertools.product([1e-20, 1e-24, 1e-30], [1, 5]):
        products = Products(cpu, weight(rng, fmt, 40, 64, size), activations(rng, m, 64))
        assert products.run().any()
        assert products.counts() == (1, 1, 0)


def test_a_row_of_zeros_is_right(cpu):
    for fmt in FORMATS:
        tensor = weight(np.random.default_rng(0), fmt, 20, 256)
        products = Products(cpu, tensor, np.zeros((2, 256), np.float32))
        assert not products.run().any()
        assert products.counts() == (1, 1, 0)


# --- The host -------------------------------------------------------------------------------------


class Meddler:
    """An engine whose weight memory is damaged during the runs with numbers in *when*."""

    def __init__(self, engine, image, when):
        self._engine, self._image, self._when = engine, image, when
        self.runs = 0

    def run(self, *arguments):
        broken = self.runs in self._when
        self.runs += 1
        before = self._image.copy()
        if broken:
            self._image ^= 0x15
        done = self._engine.run(*arguments)
        self._image[:] = before
        return done

    def __getattr__(self, name):
        return getattr(self._engine, name)


def failing_host(cpu, when, fmt="q6_k", sampler=None):
    """Return a host step whose weight is damaged in the runs *when*, its ledger, and its run."""
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, fmt, 40, 256), activations(rng, 3, 256)
    good = Products(cpu, tensor, x)
    ledger = Ledger("test")
    step = HostStep(cpu, ledger, sampler or Sampler(Mode.ALWAYS))
    placed = place([Wanted("the weight", tensor)], cpu, cpu)
    y = np.empty((3, 40), np.float32)
    step.matmul("product", good.x, placed, y, False)
    step.verify(step.sampler)
    step.program.engine = Meddler(cpu.engine, placed[0].packed.image.data, when)

    def run():
        step.run(RowTable.of(3))
        np.testing.assert_array_equal(y, good.run())

    return step, ledger, run


def test_a_passing_error_of_the_host_is_caught_and_plain_kernels_take_over(cpu):
    step, ledger, run = failing_host(cpu, {1})

    for _ in range(3):
        run()

    (row,) = ledger.report().rows
    assert (row.calls, row.failed) == (4, 1)
    assert row.verified == 4
    assert "quarantined: cpu" in ledger.report().table()
    assert "scalar kernels compute it from now on" in ledger.report().table()
    assert step.program.engine.runs == 4


def test_weights_damaged_in_memory_are_an_error_not_a_result(cpu):
    _, ledger, run = failing_host(cpu, range(9))

    for _ in range(2):
        with pytest.raises(VerificationFailed, match="the weight") as caught:
            run()
        assert "memtest" in caught.value.remedy
    assert "0 wrong" not in ledger.report().line()


def test_plain_kernels_that_were_chosen_get_a_second_chance_too():
    with CpuDevice(1, isa="scalar") as plain:
        _, ledger, run = failing_host(plain, {0})
        run()

    assert ledger.report().rows[0].failed == 1


def test_without_verification_damaged_weights_go_unseen(cpu):
    _, ledger, run = failing_host(cpu, {0}, sampler=Sampler(Mode.OFF))

    with pytest.raises(AssertionError, match="Mismatched elements"):
        run()
    assert ledger.report().rows[0].verified == 0


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_byte_of_an_image_is_watched(cpu, fmt):
    """A damaged byte affects one row of the weight, and is found if its error is large enough."""
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, fmt, 32, 256), activations(rng, 2, 256)
    products = Products(cpu, tensor, x)
    clean, changed = products.run(), np.empty((2, 32), np.float32)
    packed = products.placed[0].packed
    seen = 0
    for at in rng.integers(packed.image.data.size, size=40):
        packed.image.data[at] ^= 0x40
        cpu.matmul(x, packed, changed)
        with np.errstate(all="ignore"):
            error = abs(changed.astype(np.float64) - clean).max(axis=1)
        if not (error <= largest_hidden_error(tensor, x)).all():
            seen += 1
            with pytest.raises(VerificationFailed):
                products.run()
        packed.image.data[at] ^= 0x40
    assert seen > 5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("fmt", ["f32", "q8_0", "q4_k"])
def test_a_weight_that_holds_no_number_is_refused_by_name(cpu, fmt, bad):
    tensor = weight(np.random.default_rng(0), fmt, 4, 256)
    if fmt == "f32":
        tensor.blocks[2, 7] = bad
    else:
        tensor.blocks["d"][2, 0] = bad
    x = np.ones((1, 256), np.float32)

    with pytest.raises(NumericsError, match="the weight holds NaN or infinity"):
        Products(cpu, tensor, x)
    with pytest.raises(NumericsError, match="the weight holds NaN or infinity"):
        Products(cpu, tensor, x, device=FakeDevice(cpu)).run()


# --- How much is verified -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["always", "sample", "off"])
@pytest.mark.parametrize("remote", [False, True])
def test_each_mode_verifies_what_it_says(cpu, name, remote):
    """`sample` verifies the first product of one row, the first of several rows, and then 1 %."""
    rng = np.random.default_rng(0)
    tensor, x = weight(rng, "q8_0", 8, 32), activations(rng, 2, 32)
    device = FakeDevice(cpu) if remote else None
    chance = random.Random(1)
    products = Products(cpu, tensor, x, device=device, sampler=Sampler(Mode(name), chance))
    verified = []
    for rows in [1, 2] + 300 * [1, 2]:
        products.run(rows)
        verified.append(products.counts()[1])

    if name == "sample":
        assert verified[:2] == [1, 2]
        assert 2 < verified[-1] < 2 + 20  # 6 expected of 600; 19 or more has a chance of 1e-5
    else:
        assert verified == [(name == "always") * (i + 1) for i in range(602)]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_sampling_takes_one_product_in_a_hundred_each_with_the_same_chance(step):
    sampler = Sampler(Mode.SAMPLE, random.Random(0))
    trials = 420_000
    taken = np.concatenate(
        [np.array(sampler.choose(step), int) + start for start in range(0, trials, step)]
    )

    # Binomial with p = 1 %: five standard deviations of the whole, and of each of ten classes.
    assert abs(len(taken) - trials / 100) < 5 * math.sqrt(trials * 0.01 * 0.99)
    for count in np.bincount(taken % 10, minlength=10):
        assert abs(count - trials / 1000) < 5 * math.sqrt(trials / 10 * 0.01 * 0.99)
    assert (np.diff(taken) > 0).all()


def test_always_takes_all_and_off_takes_none():
    assert Sampler(Mode.ALWAYS).choose(5) == [0, 1, 2, 3, 4]
    assert Sampler(Mode.OFF).choose(5) == []


def test_a_kind_is_first_once():
    sampler = Sampler(Mode.SAMPLE)

    assert [sampler.is_first(kind) for kind in ("a", "b", "a", ("a", 1))] == [
        True,
        True,
        False,
        True,
    ]


def test_a_check_is_due_first_of_each_shape_and_finds_what_is_wrong(cpu):
    rng = np.random.default_rng(0)
    sampler = Sampler(Mode.SAMPLE, random.Random(1))  # does not choose the next 14
    packed = [cpu.pack(weight(rng, "q8_0", n, 32)) for n in (8, 8, 16)]
    checks = [Check(f"w{i}", w) for i, w in enumerate(packed)]

    assert [check.is_due(sampler, 1) for check in checks] == [True, False, True]
    assert [check.is_due(sampler, rows) for check in checks for rows in (1, 2, 3)] == [
        False, True, False, False, False, False, False, True, False,
    ]  # fmt: skip
    x, y = activations(rng, 3, 32), np.empty((3, 8), np.float32)
    cpu.matmul(x, packed[0], y)
    assert checks[0].accepts(x, y)
    y[2, 5] += 1
    assert not checks[0].accepts(x, y)


def test_the_mode_comes_from_the_environment_unless_given(monkeypatch):
    assert mode() is Mode.SAMPLE
    monkeypatch.setenv("NPURT_VERIFY", "always")
    assert mode() is Mode.ALWAYS
    assert mode("off") is Mode.OFF


def test_a_mode_that_does_not_exist_is_refused(monkeypatch):
    for name in ("sometimes", "ALWAYS", "1"):
        with pytest.raises(SettingError, match=name):
            npurt.Llama(tiny.path(), verify=name)
        monkeypatch.setenv("NPURT_VERIFY", name)
        with pytest.raises(SettingError, match=name):
            npurt.Llama(tiny.path())
