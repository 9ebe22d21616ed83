"""Test the RK3588's NPU as a device, simulated under both drivers: products, memory, lifetimes."""

import gc
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.device.device import MatMul
from npurt.errors import (
    DeviceFull,
    DeviceNotFound,
    LayoutError,
    NumericsError,
    UnsupportedOp,
)
from npurt.quant.tensor import QTensor
from npurt.quant.types import FORMATS
from npurt.rknpu.device import prepared, quantise
from npurt.rknpu.device.device import open_rknpu
from npurt.rknpu.device.multiply import rows_prepared
from npurt.rknpu.plan.proof import Role
from tests.cpu import cases
from tests.oracle import assert_within, gamma
from tests.rknpu.conftest import STRICT

NAMES = ("rknpu:sim", "rknpu:sim-vendor")
FILES = tuple(fmt.name for fmt in FORMATS)


@pytest.fixture(scope="module", params=NAMES)
def shared(request, simulator):
    """Open each driver's device in turn, for tests that do not change its state."""
    simulator.set(f"reload=1 {STRICT}")
    with open_rknpu(request.param) as device:
        yield device
    simulator.set(f"reload=1 {STRICT} coherent=1 hang_ms=0")


@pytest.fixture(params=NAMES)
def device(request, simulator):
    simulator.set(f"reload=1 {STRICT}")
    with open_rknpu(request.param) as opened:
        yield opened
    simulator.set(f"reload=1 {STRICT}")


def tensor(n, k, kind="f32", seed=0):
    rng = np.random.default_rng(seed)
    if kind in ("q2_k", "q3_k", "iq4_xs"):  # npurt cannot quantise to these formats
        return cases.weight(rng, kind, n, k, scales=np.float16([0.01, 0.02]))
    return QTensor.quantize(rng.standard_normal((n, k)).astype(np.float32), kind)


def inputs(m, k, seed=1):
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def multiply(device, x, *weights):
    outs = [np.full((len(x), w.n), np.nan, np.float32) for w in weights]
    device.matmuls(x, weights, outs)
    return outs[0] if len(outs) == 1 else outs


def by_scheme(device, source, name):
    """Upload a weight by a given scheme, instead of the one that its error selects."""
    return device.upload(source, quantise.quantise_weight(source, quantise.BY_NAME[name]))


def assert_exact(device, x, packed, y):
    """Check that y is the product of the values that the device reports, except for rounding.

    The reported values of x and w are rounded to float32, and so are the result of each part and
    each sum of parts: at most 2 + parts roundings of any term.  Sums of float16 products are
    rounded K times more.
    """
    rounded = device.multiplied(x, packed).astype(np.float64)
    weights = packed.multiplied(slice(None)).astype(np.float64)
    roundings = 2 + len(packed.parts) + (packed.k if packed.scheme.task == "fp16" else 0)
    bound = gamma(roundings) * (abs(rounded) @ abs(weights).T)
    assert_within(y, rounded @ weights.T, bound)


def assert_near(device, x, packed, y):
    """Check y against the product of the original x and w.

    Codes are within half a step of the rotated values, and a step is 1/127 of the largest of a row
    (or 1/254 of that, with two passes).  2 % are added for float32 rounding in the rotation.
    """
    exact = x.astype(np.float64) @ packed.tensor.dequantize().astype(np.float64).T
    bound = 0.0
    widths = np.cumsum([0, *(part.kp for part in packed.parts)])
    for start, end in itertools.pairwise(widths):
        mine = device.multiplied(x, packed)[:, start:end].astype(np.float64)
        weights = packed.multiplied(slice(None))[:, start:end].astype(np.float64)
        steps = 254 if packed.scheme.passes == 2 else 1
        half_x = abs(mine).max(axis=1, keepdims=True) / 127 / 2 / steps
        half_w = abs(weights).max(axis=1, keepdims=True).T / 127 / 2
        bound = bound + half_w * abs(mine).sum(1, keepdims=True)
        bound = bound + half_x * abs(weights).sum(1) + (end - start) * half_x * half_w
    assert_within(y, exact, 1.02 * bound)


# --- Products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("int16", [False, True])
def test_every_format_multiplies_as_well_as_expected(shared, kind, int16):
    """The mean square error averages many roundings, so it varies by about 10 %."""
    packed = shared.pack(tensor(96, 512, kind), int16=int16)
    x = inputs(7, 512)

    y = multiply(shared, x, packed)

    assert_exact(shared, x, packed, y)
    exact = x.astype(np.float64) @ packed.tensor.dequantize().astype(np.float64).T
    assert ((y - exact) ** 2).sum() <= 2 * packed.expected_error * (exact**2).sum()
    assert packed.nbytes >= 96 * 512


@settings(max_examples=60)
@given(
    n=st.integers(1, 200),
    k=st.integers(1, 300),
    m=st.integers(1, 40),
    scheme=st.sampled_from(["int8", "int8x2", "int8-plain"]),
    spread=st.floats(0, 3),
)
def test_any_shape_is_padded_and_multiplied(shared, n, k, m, scheme, spread):
    sizes = np.exp(spread * np.random.default_rng(k).standard_normal(k)).astype(np.float32)
    source = QTensor.quantize(inputs(n, k, seed=n) * sizes, "f32")
    packed = by_scheme(shared, source, scheme)
    x = inputs(m, k, seed=m) / sizes

    y = multiply(shared, x, packed)

    assert_exact(shared, x, packed, y)
    assert_near(shared, x, packed, y)


@pytest.mark.parametrize("scheme", quantise.BY_NAME)
@pytest.mark.parametrize(("n", "k", "m"), [(40, 1100, 3), (200, 512, 1), (33, 544, 130)])
def test_every_scheme_multiplies(shared, scheme, n, k, m):
    """With g512, K = 1100 has three groups of at most 512."""
    packed = by_scheme(shared, tensor(n, k), scheme)
    x = inputs(m, k)

    y = multiply(shared, x, packed)

    assert len(packed.parts) == (-(-k // 512) if scheme.endswith("g512") else 1)
    assert_exact(shared, x, packed, y)
    if packed.scheme.task == "int8":
        assert_near(shared, x, packed, y)


def test_halves_are_as_exact_as_halves_are(shared):
    """Each value of x and w is rounded by at most 2^-11 of itself, whatever the size of its row."""
    source = tensor(50, 100)
    packed = by_scheme(shared, source, "fp16")
    x = inputs(4, 100) * np.float32([[1e30], [1], [1e-30], [0]])

    y = multiply(shared, x, packed)

    exact = source.dequantize().astype(np.float64)
    total = abs(x.astype(np.float64)) @ abs(exact).T
    tiny = 2.0**-25 * abs(x).max(axis=1, keepdims=True) / 2**13 * abs(exact).sum(axis=1)
    assert_within(y, x.astype(np.float64) @ exact.T, (2.0**-10 + gamma(110)) * total + tiny)


@pytest.mark.parametrize(
    ("m", "prepared"), [(1, 1), (16, 16), (17, 32), (33, 48), (128, 128), (129, 192), (512, 512)]
)
def test_numbers_of_rows_are_rounded_up_to_few(m, prepared):
    assert rows_prepared(m) == prepared


@pytest.mark.parametrize("m", [2, 9, 16, 17, 100, 128, 129, 300, 512, 513, 1100])
def test_a_row_does_not_depend_on_the_rows_beside_it(shared, m):
    packed = shared.pack(tensor(72, 160, "q8_0"))
    x = inputs(m, 160)

    y = multiply(shared, x, packed)

    for row in {0, m // 2, min(m, 511) - 1, m - 1}:
        np.testing.assert_array_equal(y[row : row + 1], multiply(shared, x[row : row + 1], packed))


def test_weights_of_one_input_that_are_rounded_alike_are_one_job(shared, simulator):
    alike = [shared.pack(tensor(n, 128, "q8_0", n)) for n in (200, 33, 7)]
    x = inputs(5, 128)
    singles = [multiply(shared, x, w) for w in alike]
    multiply(shared, x, *alike)
    simulator.set("counters=0")

    together = multiply(shared, x, *alike)

    cores = len(shared._driver.spaces) if shared._driver.name == "rocket" else 1
    assert simulator.report()["submits"][shared._driver.name] == cores
    for one, other in zip(singles, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_of_one_input_may_be_rounded_in_different_ways(shared):
    weights = [
        by_scheme(shared, tensor(n, 600, "f32", n), scheme)
        for n, scheme in ((64, "int8"), (33, "int8x2"), (7, "fp16"), (40, "int8"), (9, "int8x2"))
    ]
    x = inputs(3, 600)

    together = multiply(shared, x, *weights)

    for weight, y in zip(weights, together, strict=True):
        np.testing.assert_array_equal(y, multiply(shared, x, weight))


@pytest.mark.parametrize(("n", "k"), [(151936, 64), (248320, 32)])
def test_the_largest_output_matrices_are_split(shared, n, k):
    packed = shared.pack(tensor(n, k, "q8_0"), int16=True)
    x = inputs(2, k)

    y = multiply(shared, x, packed)

    assert len(packed.parts[0].images) == 3
    assert_exact(shared, x, packed, y)
    np.testing.assert_array_equal(multiply(shared, x[1:], packed), y[1:])


def test_both_drivers_give_the_same_bits(simulator):
    results = []
    for name in NAMES:
        with open_rknpu(name) as opened:
            packed = [by_scheme(opened, tensor(70, 1100), scheme) for scheme in quantise.BY_NAME]
            x = inputs(20, 1100)
            results.append([multiply(opened, x, w) for w in packed])
    np.testing.assert_array_equal(*results)


def test_wide_results_may_lie_anywhere(shared):
    """Test rows of an out that is wider than the product, and weights that are not aligned."""
    packed = shared.pack(tensor(50, 64, "q8_0"))
    x = inputs(3, 96)[:, :64].copy()
    wide = np.zeros((4, 50), np.float32)

    shared.matmul(x, packed, wide[1:])

    np.testing.assert_array_equal(wide[1:], multiply(shared, x, packed))
    assert not wide[0].any()


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("scheme", ["int8", "int8x2-g512", "fp16"])
@pytest.mark.parametrize("row", [0, 4, 519])
def test_what_is_not_finite_is_refused_by_its_row(shared, bad, scheme, row):
    packed = by_scheme(shared, tensor(33, 600), scheme)
    x = inputs(520, 600)
    good = multiply(shared, x[:5], packed)
    x[row, 599] = bad

    with pytest.raises(NumericsError, match=rf"row {row} "):
        multiply(shared, x, packed)
    x[row, 599] = 0
    np.testing.assert_array_equal(multiply(shared, inputs(520, 600)[:5], packed), good)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused(shared, bad):
    values = inputs(4, 64)
    values[2, 3] = bad

    with pytest.raises(NumericsError, match="a weight") as caught:
        shared.pack(QTensor(values, "f32"))
    assert "this weight is damaged" in caught.value.remedy


def test_what_is_no_matrix_is_refused(shared):
    for source in (tensor(8, 64).T, QTensor(np.zeros((2, 8, 64), np.float32), "f32")):
        with pytest.raises(UnsupportedOp, match="cannot pack"):
            shared.pack(source)


@pytest.mark.parametrize("shape", [(0, 32), (32, 0)])
def test_a_weight_without_elements_is_refused_as_that(shared, shape):
    with pytest.raises(UnsupportedOp, match="no elements") as caught:
        shared.pack(QTensor.quantize(np.zeros(shape, np.float32), "q8_0"))
    assert ".T" not in caught.value.remedy


def test_every_format_and_shape_can_be_planned_and_nothing_else(shared):
    for kind in FILES:
        assert shared.why_not(MatMul(1, 7, 3, kind)) is None
    assert "no format" in shared.why_not(MatMul(1, 32, 32, "q9_9"))
    assert shared.why_not(MatMul(1, 0, 32, "f32"))
    assert shared.why_not(MatMul(1, 32, 0, "f32"))


def test_a_weight_of_another_device_is_refused(shared, simulator):
    with open_rknpu("rknpu:sim") as other:
        packed = other.pack(tensor(32, 64))
        with pytest.raises(LayoutError, match="another device"):
            multiply(shared, inputs(1, 64), packed)


@pytest.mark.parametrize("name", ["rknpu:1", "rknpu:sim-v68", "rknpu:", "rknpu:simulator"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(DeviceNotFound, match="rknpu") as caught:
        open_rknpu(name)
    assert caught.value.remedy


# --- Memory -------------------------------------------------------------------------------------


def held(device, *roles):
    """Return the bytes of the existing buffers with these roles, or of all buffers."""
    spaces = dict.fromkeys(device._driver.spaces)
    spans = [span for space in spaces for span in space.spans]
    return sum(span.end - span.start for span in spans if not roles or span.role in roles)


def test_a_weight_that_nobody_has_frees_its_memory_and_programs(device):
    kept = device.pack(tensor(64, 96))
    x = inputs(2, 96)
    multiply(device, x, kept)
    before = held(device)
    for seed in range(3):
        gone = device.pack(tensor(64, 96, seed=seed))
        multiply(device, x, kept, gone)
        assert held(device) > before
        del gone
        gc.collect()

    multiply(device, x, kept)

    assert held(device) == before


def test_the_products_used_least_recently_make_room(device, monkeypatch):
    monkeypatch.setattr(prepared, "MAX_PREPARED", 3)
    packed = device.pack(tensor(64, 96))
    wanted = [multiply(device, inputs(m, 96), packed) for m in range(1, 4)]
    three = held(device, Role.PROGRAM, Role.TASKS)
    multiply(device, inputs(1, 96), packed)  # this makes it the most recently used one
    used = device._weights.calls.made[(packed.number,), 1]

    for m in range(4, 12):
        multiply(device, inputs(m, 96), packed)
        multiply(device, inputs(1, 96), packed)

    assert held(device, Role.PROGRAM, Role.TASKS) == three
    assert device._weights.calls.made[(packed.number,), 1] is used
    for m, y in enumerate(wanted, 1):
        np.testing.assert_array_equal(multiply(device, inputs(m, 96), packed), y)


def images(device):
    """Return the buffers of weights."""
    return [s for space in device._driver.spaces for s in space.spans if "weight" in s.name]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_weight_without_room_is_refused_and_leaves_nothing(device, simulator, nth):
    packed = device.pack(tensor(64, 96))
    x = inputs(2, 96)
    y = multiply(device, x, packed)
    before = images(device)
    simulator.set(f"fault=enomem@create:{nth}+")

    with pytest.raises(DeviceFull, match="no space"):
        device.pack(tensor(96, 96))

    simulator.set("reload=1")
    assert images(device) == before
    np.testing.assert_array_equal(multiply(device, x, packed), y)
    assert device.events() == []


# --- Lifetimes ----------------------------------------------------------------------------------


def test_a_weight_may_outlive_its_device(device):
    packed = device.pack(tensor(32, 64))
    multiply(device, inputs(1, 64), packed)
    device.close()
    del packed
    gc.collect()
