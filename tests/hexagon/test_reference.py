"""Test that dsp/reference equals the kernels and the integers of the model, to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME, FORMATS
from npurt.hexagon.layout.quantise import quantise
from tests.hexagon import model
from tests.hexagon.kernels import FILL, Driver
from tests.hexagon.reference import Reference
from tests.hexagon.weights import groups, weight
from tools.build import hexagon

NAMES = [f.name for f in FORMATS]
SOURCES = sorted(hexagon.REFERENCE.glob("*.c"))

# Rows of any size and sign, [m, k].
ROWS = {
    "gauss": lambda rng, shape: rng.standard_normal(shape),
    "spread": lambda rng, shape: rng.standard_normal(shape) * np.exp(rng.normal(0, 6, shape)),
    "alike": lambda rng, shape: rng.choice([-3.0, 3.0], shape),
    "greatest": lambda rng, shape: np.full(shape, -3.0),
    "powers": lambda rng, shape: np.ldexp(rng.choice([-1.0, 0, 1], shape), rng.integers(-3, 4)),
    "sparse": lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.02),
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 2.0 ** powers(rng, shape, -149, -80),
    "huge": lambda rng, shape: rng.uniform(-1, 1, shape) * 2.0 ** powers(rng, shape, 70, 128),
    "any": lambda rng, shape: finite(rng.integers(0, 2**32, shape, dtype=np.uint32)),
}

CASES = {
    "name": st.sampled_from(NAMES),
    "rows": st.sampled_from(sorted(ROWS)),
    "extreme": st.sampled_from([-1, 0, 0, 1]),
    "m": st.integers(1, 9),
    "k": st.integers(1, 45),
    "n": st.integers(1, 200),
    "seed": st.integers(0, 2**32 - 1),
}


def powers(rng, shape, minimum, maximum):
    """Return an exponent for each row; the first row has the greatest."""
    return np.append(maximum - 1, rng.integers(minimum, maximum, shape[0] - 1))[:, None].astype(
        float
    )


def finite(bits):
    """Return float32 of any bits; NaN and infinity get another exponent."""
    return np.where(bits >> 23 & 0xFF == 0xFF, bits ^ 1 << 30, bits).view(np.float32)


def case(name, rows, extreme, m, k, n, seed):
    """Return x ``[m, K]`` and the image of n rows; K is 32 k, rounded up to a whole block."""
    rng = np.random.default_rng(seed)
    block = 256 if name.endswith("_k") or name == "iq4_xs" else 32
    k = -(-32 * k // block) * block
    x = ROWS[rows](rng, (m, k)).astype(np.float32)
    if name == "i8" and extreme:  # results above and below the range of float32
        codes = np.full((n, k), 127 if extreme > 0 else -128, np.int8)
        scales = 2.0 ** (40 if extreme > 0 else -55) * rng.uniform(0.5, 2, n)
        return x, images.pack_i8(codes, scales.astype(np.float32))
    return x, weight(rng, name, n, k, extreme)


def group_of(name, seed):
    return groups(name)[seed % len(groups(name))]


def stated(m, k):
    """Return a mask of the bytes of activations without the padding of a panel's parts."""
    steps = -(-k // 64)
    parts = []
    for rows in [4] * (m // 4) + [1] * (m % 4):
        for nbytes in (8 * rows, 64 * rows * steps, 16 * rows * steps, 128 * rows * steps):
            parts += [np.ones(nbytes, bool), np.zeros(-nbytes % 128, bool)]
    return np.concatenate(parts)


def assert_same_bits(answer, expected):
    np.testing.assert_array_equal(answer.view(np.uint32), expected.view(np.uint32))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module", params=hexagon.ARCHS)
def driver(request, tmp_path_factory):
    """Return the driver of the kernels of each architecture."""
    started = Driver(request.param, tmp_path_factory.mktemp("kernels"))
    yield started
    started.close()


@settings(max_examples=100)
@given(**CASES)
def test_it_equals_the_integers_of_the_model(reference, name, n, seed, **shape):
    x, image = case(name, n=n, seed=seed, **shape)
    group = group_of(name, seed)

    y = reference.run(x, image, name, n, group=group).result(n)

    held = images.unpack(image, BY_NAME[name], n, x.shape[1])
    assert_same_bits(y, model.product(quantise(x, group), held, name))


def assert_equal(driver, reference, x, image, name, **asked):
    """Check that the kernels and the reference give the same results and activations."""
    kernels = driver.run(x, image, name, **asked)
    plain = reference.run(x, image, name, **asked)
    np.testing.assert_array_equal(kernels.y, plain.y)
    meant = stated(*x.shape)
    np.testing.assert_array_equal(kernels.activations[meant], plain.activations[meant])


@settings(max_examples=60)
@given(**CASES)
def test_the_kernels_equal_it(driver, reference, name, n, seed, **shape):
    x, image = case(name, n=n, seed=seed, **shape)

    asked = {"n": n, "group": group_of(name, seed), "pad": seed % 4}
    assert_equal(driver, reference, x, image, name, **asked)


@pytest.mark.parametrize("name", NAMES)
def test_the_kernels_equal_it_in_every_format_and_grouping(driver, reference, name):
    """The shapes have panels and single rows, four tiles and one, a partial tile, half a step."""
    for rows, extreme in (("spread", 0), ("tiny", -1), ("huge", 1)):
        x, image = case(name, rows, extreme, 6, 13, 169, 1)
        for group in groups(name):
            assert_equal(driver, reference, x, image, name, n=169, group=group)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_reported(reference, value):
    x, image = case("q8_0", "gauss", 0, 6, 3, 32, 1)
    assert not reference.run(x, image, "q8_0", 32).failed

    x[5, 95] = value

    assert reference.run(x, image, "q8_0", 32).failed


def test_a_range_of_tiles_writes_its_columns_only(reference):
    x, image = case("q4_0", "gauss", 0, 5, 2, 150, 1)
    whole = reference.run(x, image, "q4_0", 150).result(150)

    part = reference.run(x, image, "q4_0", 150, tiles=(2, 4), split=4).y.view(np.float32)

    np.testing.assert_array_equal(part[:, 64:128], whole[:, 64:128])
    assert (part.view(np.uint8)[:, : 4 * 64] == FILL).all()
    assert (part.view(np.uint8)[:, 4 * 128 :] == FILL).all()


def test_a_dsp_can_run_it_in_place_of_the_kernels(reference, tmp_path):
    driver = Driver("v68", tmp_path, SOURCES)
    for name in ("q4_k", "i8"):
        x, image = case(name, "spread", 0, 6, 8, 70, 1)
        asked = {"n": 70, "group": group_of(name, 0)}
        answer = driver.run(x, image, name, **asked)
        np.testing.assert_array_equal(answer.y, reference.run(x, image, name, **asked).y)
    driver.close()


def test_no_skel_has_it():
    assert not set(SOURCES) & set(hexagon.skel_sources())
    assert not set(SOURCES) & set(hexagon.skel_inputs())
    assert len(SOURCES) == 2
