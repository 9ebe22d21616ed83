"""Test the HVX kernels under qemu: equal to integers in numpy to the bit, on each architecture."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.hexagon_kernels import ARCHS as COUNTED
from bench.hexagon_kernels import small_counts
from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME, FORMATS
from npurt.hexagon.layout.quantise import quantise
from tests.hexagon import model
from tests.hexagon.kernels import FILL, Driver
from tests.hexagon.weights import columns, groups, weight
from tools.build import hexagon

COUNTS = Path(__file__).parents[1] / "data/hexagon/packets.json"
NAMES = [f.name for f in FORMATS]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """Return a function that returns the driver of an architecture, started at the first call."""
    started = {}

    def driver(arch):
        if arch not in started:
            started[arch] = Driver(arch, tmp_path_factory.mktemp("kernels"))
        return started[arch]

    yield driver
    for one in started.values():
        one.close()


def check(driver, name, image, x, n, *, group, **options):
    """Run the kernels, check that results equal the model's to the bit; return the answer."""
    answer = driver.run(x, image, name, n, group=group, **options)
    held = images.unpack(image, BY_NAME[name], n, x.shape[1])
    expected = model.product(quantise(x, group), held, name)
    assert not answer.failed
    np.testing.assert_array_equal(answer.result(n).view(np.uint32), expected.view(np.uint32))
    return answer


# --- every build, every format ------------------------------------------------------------------


@pytest.mark.parametrize("arch", hexagon.ARCHS)
@pytest.mark.parametrize("name", NAMES)
def test_products_equal_the_integers_of_the_model(drivers, arch, name):
    """The shapes have panels and single rows, four tiles and one, a partial tile, half a step."""
    rng = np.random.default_rng(7)
    n = 5 * 32 + 9
    for k in (columns(name, 64), columns(name, 416)):
        image = weight(rng, name, n, k)
        x = (rng.standard_normal((6, k)) * np.exp(rng.standard_normal(k))).astype(np.float32)
        for group in groups(name):
            check(drivers(arch), name, image, x, n, group=group)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(NAMES),
    m=st.integers(1, 9),
    k=st.integers(1, 45),
    n=st.integers(1, 200),
    pad=st.integers(0, 3),
    spread=st.floats(0, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(drivers, name, m, k, n, pad, spread, seed):
    """Only the n columns of a row are written, and no byte beyond a buffer is accessed."""
    rng = np.random.default_rng(seed)
    k = columns(name, 32 * k)
    image = weight(rng, name, n, k)
    x = (rng.standard_normal((m, k)) * np.exp(spread * rng.standard_normal(k))).astype(np.float32)
    group = groups(name)[seed % len(groups(name))]
    split = m // 4 * 4 if seed % 3 else 0

    answer = check(drivers("v68"), name, image, x, n, group=group, pad=pad, split=split)

    assert (answer.y[:, 4 * n :] == FILL).all()


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q8_0", "q5_1", "q6_k", "q2_k", "f16", "iq4_nl"])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_codes_neither_wrap_nor_saturate(drivers, name, sign):
    """All codes of x are 127, and those of w the largest or smallest, so sums are largest."""
    n, k = 128 + 32, columns(name, 1024)
    rng = np.random.default_rng(0)
    image = weight(rng, name, n, k, extreme=sign)
    for rows in (1, 4):
        x = np.full((rows, k), 3.0, np.float32)
        check(drivers("v68"), name, image, x, n, group=32)
        check(drivers("v68"), name, image, -x, n, group=32)


def test_int8_sums_of_the_longest_rows_are_exact(drivers):
    """The sum has 65536 products of -128 and 127."""
    image = images.pack_i8(np.full((32, 65536), -128, np.int8), np.ones(32, np.float32))
    x = np.full((1, 65536), 127, np.float32)

    answer = check(drivers("v68"), "i8", image, x, 32, group=0)

    np.testing.assert_allclose(answer.result(32), -128 * 127 * 65536.0, rtol=2**-13)


def test_a_range_of_tiles_writes_its_columns_only(drivers):
    rng = np.random.default_rng(3)
    image = weight(rng, "q4_0", 300, 256)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    driver = drivers("v68")
    whole = driver.run(x, image, "q4_0", 300).y

    part = driver.run(x, image, "q4_0", 300, tiles=(2, 8)).y

    np.testing.assert_array_equal(part[:, 256:1024], whole[:, 256:1024])
    assert (part[:, :256] == FILL).all()
    assert (part[:, 1024:] == FILL).all()


@pytest.mark.parametrize("name", ["q4_0", "iq4_nl", "i8"])
@pytest.mark.parametrize("n", [1, 31, 97, 127, 129, 255])
def test_of_a_last_tile_only_the_columns_that_there_are_are_written(drivers, name, n):
    """The partial tile is multiplied alone, or as the last of four tiles."""
    rng = np.random.default_rng(n)
    image = weight(rng, name, n, 64)
    x = rng.standard_normal((5, 64)).astype(np.float32)

    answer = check(drivers("v68"), name, image, x, n, group=groups(name)[0], pad=32)

    assert (answer.y[:, 4 * n :] == FILL).all()


# --- values of x --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale", [0.0, 2.0**-149, 2.0**-126, 2.0**-88, 2.0**-60, 2.0**100, 1.7e38, 3.4e38]
)
@pytest.mark.parametrize("rows", [1, 4])
def test_tiny_and_huge_rows(drivers, scale, rows):
    rng = np.random.default_rng(4)
    image = weight(rng, "q4_1", 40, 192)
    x = (rng.uniform(-1, 1, (rows, 192)) * scale).astype(np.float32)
    x[0, :32] = 0

    check(drivers("v68"), "q4_1", image, x, 40, group=32)


@pytest.mark.parametrize("largest", [2.0**60, 2.0**-70])
def test_results_beyond_float32_are_infinite_or_zero(drivers, largest):
    """Some lanes have scales whose product overflows or underflows; others do not."""
    rng = np.random.default_rng(5)
    codes = rng.integers(-127, 128, (32, 64), dtype=np.int8)
    scales = np.where(np.arange(32) % 2, largest, 1).astype(np.float32)
    image = images.pack_i8(codes, scales)
    x = rng.uniform(1, 2, (1, 64)).astype(np.float32) * np.float32(largest)

    answer = check(drivers("v68"), "i8", image, x, 32, group=0)

    odd = answer.result(32)[0, 1::2]
    assert np.isinf(odd).any() if largest > 1 else (odd == 0).all()
    assert np.isfinite(answer.result(32)[0, ::2]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (4, 1247), (6, 1200)])
def test_a_value_that_is_not_finite_is_reported(drivers, value, where):
    x = np.ones((7, 1248), np.float32)
    image = weight(np.random.default_rng(0), "q8_0", 32, 1248)
    assert not drivers("v68").run(x, image, "q8_0", 32).failed

    x[where] = value

    for group in (32, 128):
        assert drivers("v68").run(x, image, "q8_0", 32, group=group).failed


def test_float32_results_of_known_sums(drivers):
    """Codes of 1 times 127 give exactly 127 * 32, so the units of x, w and the result are right."""
    image = images.pack_i8(np.ones((32, 32), np.int8), np.full(32, 2.0, np.float32))
    x = np.full((1, 32), 0.5, np.float32)

    y = drivers("v68").run(x, image, "i8", 32, group=0).result(32)

    np.testing.assert_allclose(y, 32.0, rtol=2**-13)


# --- accuracy -----------------------------------------------------------------------------------


def inputs(rng, kind, m, k):
    x = rng.standard_normal((m, k))
    if kind == "outlier":
        factor = np.exp(0.6 * rng.standard_normal(k))
        factor[rng.choice(k, k // 256, replace=False)] *= 20
        x *= factor
    return x.astype(np.float32)


def bound(q, held, kind):
    """Return the largest error of each result, by the roundings that product.h defines.

    In units of a row of x times a row of w: the error of h is at most 1/2 if codes are narrowed,
    times a product of scales.  The error of a product of scales is 1/2, times h.  Sums that
    multiply offsets have the error 1/2, too.  A step loses less than 2^shift.
    """
    scales = np.repeat(q.scales.astype(np.float64), 32 // kind.group, axis=1)[:, None]
    blocks = q.codes.reshape(len(q.codes), -1, kind.group).astype(np.float64)
    w = held.codes.reshape(len(held.codes), -1, kind.group).astype(np.float64)
    h = abs(np.einsum("mbc,nbc->mnb", blocks, w)) / kind.unit
    loss = (h + 0.5) / 2 + (0.5 * abs(held.scales) * scales / 2**15 if kind.unit > 1 else 0)
    if held.offsets is not None:
        sums = abs(kind.sums * blocks.sum(axis=2))[:, None] if kind.sums < 0 else 0
        loss += (abs(held.offsets) if kind.sums > 0 else sums) / 2
    steps = -(-q.codes.shape[1] // 64)
    lost = loss.sum(axis=2) + steps * 2 ** (steps - 1).bit_length()
    return np.ldexp(lost, q.exponents[:, None] + held.exponents + 15)


@pytest.mark.parametrize("kind", ["gauss", "outlier"])
@pytest.mark.parametrize("name", [n for n in NAMES if n != "i8"])
def test_results_are_within_the_roundings_of_the_exact_product(drivers, name, kind):
    """The comparison with float64 also checks the operands and their scales."""
    rng = np.random.default_rng(6)
    n, k = 64, 1536
    image = weight(rng, name, n, k)
    x = inputs(rng, kind, 5, k)
    w = images.multiplied(image, BY_NAME[name], n, k).astype(np.float64)
    q = quantise(x)

    y = drivers("v68").run(x, image, name, n).result(n).astype(np.float64)

    exact = q.values().astype(np.float64) @ w.T
    held = images.unpack(image, BY_NAME[name], n, k)
    floats = 2.0**-23 * (abs(q.values().astype(np.float64)) @ abs(w).T)  # of w and of y
    assert (abs(y - exact) <= bound(q, held, BY_NAME[name].kind) + floats).all()


# --- packets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", COUNTED)
def test_packets_are_as_counted(drivers, arch):
    """Counts are exact; after an intended change, run python bench/hexagon_kernels.py --update."""
    assert small_counts(drivers(arch)) == json.loads(COUNTS.read_text())[arch]
