"""Test the rounding for the NPU: the C code equals numpy, and errors are within their bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import NumericsError
from npurt.quant.tensor import QTensor
from npurt.rknpu.device import quantise
from npurt.rknpu.driver.native.host import round_rows
from npurt.rknpu.driver.native.run import NativeRun, Rectangle, Target
from npurt.rknpu.driver.system import LinuxKernel


def hadamard(n):
    """Return Sylvester's matrix, whose entries are 1 and -1."""
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def rotated(x, signs, block):
    """Return *x* rotated, in float64."""
    z = (x * signs).reshape(len(x), -1, block) @ hadamard(block)
    return z.reshape(len(x), -1)


def rounded(x, kp, *, signs=None, block=1, passes=1):
    codes = np.full((passes * len(x), kp), 99, np.int8)
    scales = np.full(len(x), np.nan, np.float32)
    round_rows(x, codes, scales, signs=signs, block=block, passes=passes)
    return codes, scales


def rows(m, k, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    size = np.exp(spread * rng.standard_normal(k))
    return (rng.standard_normal((m, k)) * size).astype(np.float32)


@given(
    m=st.integers(1, 5),
    k=st.integers(1, 200),
    seed=st.integers(0, 99),
    spread=st.floats(0, 4),
    exponent=st.integers(-30, 30),
)
def test_codes_without_rotation_are_those_of_the_formula(m, k, seed, spread, exponent):
    x = rows(m, k, seed, spread) * np.float32(2.0**exponent)
    kp = -(-k // 32) * 32

    codes, scales = rounded(x, kp, passes=2)

    amax = abs(x).max(axis=1)
    scaled = x * (np.float32(127) / amax)[:, None]
    high = np.rint(scaled)
    np.testing.assert_array_equal(scales, amax / np.float32(127))
    np.testing.assert_array_equal(codes[:m, :k], high)
    np.testing.assert_array_equal(codes[m:, :k], np.rint((scaled - high) * np.float32(254)))
    assert not codes[:, k:].any()


@given(seed=st.integers(0, 99), blocks=st.integers(1, 5), block=st.sampled_from([1, 2, 32, 64]))
def test_a_rotation_is_signs_and_a_hadamard_matrix(seed, blocks, block):
    k = blocks * 64
    x = rows(3, k, seed)
    signs = quantise.signs_of(k)

    codes, scales = rounded(x, k, signs=signs, block=block, passes=2)

    z = rotated(x.astype(np.float64), signs, block)
    got = (codes[:3] + codes[3:] / 254.0) * scales[:, None]
    # The bound is half a step of the second pass, and the errors of six float32 additions.
    assert (abs(got - z) <= (0.5 / 254 / 127 + 7 * 2.0**-24) * abs(z).max(1, keepdims=True)).all()


def test_signs_and_transform_cancel_in_a_product():
    k = 192
    x, w, signs = rows(4, k), rows(6, k, 1), quantise.signs_of(k)

    z = rotated(x, signs, 64) @ rotated(w, signs, 64).T / 64

    np.testing.assert_allclose(z, x.astype(np.float64) @ w.T.astype(np.float64), rtol=1e-9)


def test_a_known_transform():
    """Rows of the identity become rows of Sylvester's matrix, whose 64 codes have one magnitude."""
    codes, scales = rounded(np.eye(64, dtype=np.float32) * 3, 64, signs=None, block=64)

    np.testing.assert_array_equal(codes, 127 * hadamard(64))
    np.testing.assert_array_equal(scales, np.float32(3) / np.float32(127))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_refused_by_its_number(bad):
    x = rows(3, 64)
    x[1, 63] = bad

    with pytest.raises(NumericsError, match="row 1"):
        rounded(x, 64, signs=quantise.signs_of(64), block=64)


def test_a_sum_that_overflows_is_refused():
    with pytest.raises(NumericsError):
        rounded(np.full((1, 64), 3e38, np.float32), 64, block=64)


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38])
def test_rows_too_small_for_a_scale_are_zero(tiny):
    codes, scales = rounded(np.full((2, 32), tiny, np.float32), 32, passes=2)

    assert not codes.any()
    assert not scales.any()


@given(
    m=st.integers(1, 4),
    n=st.integers(1, 70),
    slices=st.integers(1, 3),
    passes=st.sampled_from([1, 2]),
    kind=st.sampled_from([np.int32, np.float32]),
    seed=st.integers(0, 99),
)
def test_sums_get_their_scales(m, n, slices, passes, kind, seed):
    """The second result has two rectangles side by side, and a third is added to the first one."""
    rng = np.random.default_rng(seed)
    passes = 1 if kind is np.float32 else passes
    largest = (2**31 - 1) // slices
    sums = rng.integers(-largest, largest, (3, slices, passes * m, 96)).astype(kind)
    scales, w = rng.random((3, m), np.float32), rng.random((3, n), np.float32)
    outs = [np.full((m, 5), np.float32(7)), np.full((m, 2 * n), np.float32(7))]
    run = NativeRun([])
    run.add_scaling(
        [
            Rectangle(sums[0], scales[0], w[0], 1, 0, False),
            Rectangle(sums[1], scales[1], w[1], 1, n, False),
            Rectangle(sums[2], scales[2], w[2], 1, 0, True),
        ],
        [out.shape[1] for out in outs],
    )
    run.bind(rows(m, 1), outs)

    assert LinuxKernel().make(run) is None

    def scaled(i):
        total = sums[i].astype(np.float64).sum(axis=0)[:, :n]
        scale = scales[i][:, None].astype(np.float64)
        if passes == 2:
            total, scale = 254 * total[:m] + total[m:], scale / 254
        return (total * scale * w[i]).astype(np.float32)

    np.testing.assert_array_equal(outs[1][:, :n], scaled(0) + scaled(2))
    np.testing.assert_array_equal(outs[1][:, n:], scaled(1))
    assert (outs[0] == 7).all()


def test_parts_of_k_are_rounded_as_each_alone():
    x = rows(3, 160)
    parts = [slice(0, 64), slice(64, 160)]
    targets = [
        Target(part, 32, quantise.signs_of(96), np.empty((6, 96), np.int8), np.empty(3, np.float32))
        for part in parts
    ]

    run = NativeRun([])
    run.add_quantise(targets, x.shape[1])
    run.bind(x, [])

    assert LinuxKernel().make(run) is None
    for part, target in zip(parts, targets, strict=True):
        alone = np.ascontiguousarray(x[:, part])
        codes, scales = rounded(alone, 96, signs=quantise.signs_of(96), block=32, passes=2)
        np.testing.assert_array_equal(target.codes, codes)
        np.testing.assert_array_equal(target.scales, scales)


def test_a_bad_row_is_refused_whatever_part_it_is_in():
    x = rows(3, 64)
    x[2, 40] = np.inf
    targets = [
        Target(part, 1, None, np.empty((3, 32), np.int8), np.empty(3, np.float32))
        for part in (slice(0, 32), slice(32, 64))
    ]

    run = NativeRun([])
    run.add_quantise(targets, x.shape[1])
    for first in (0, 512):
        run.bind(x, [], first)
        with pytest.raises(NumericsError, match=f"row {first + 2} "):
            LinuxKernel().make(run)


@pytest.mark.parametrize("name", quantise.BY_NAME)
@pytest.mark.parametrize(("n", "k"), [(40, 96), (33, 32), (7, 1152), (64, 640)])
def test_a_rounded_weight_is_as_far_off_as_it_says(name, n, k):
    """The estimated error is a mean; for a few thousand values it is right to a fifth."""
    scheme = quantise.BY_NAME[name]
    tensor = QTensor.quantize(rows(n, k, 3, 0.5), "f32")
    exact = tensor.dequantize().astype(np.float64)

    weight = quantise.quantise_weight(tensor, scheme)

    lost = 0.0
    for part in weight.parts:
        kp = part.codes.shape[1]
        padded = np.zeros((n, kp))
        padded[:, : part.columns.stop - part.columns.start] = exact[:, part.columns]
        if part.signs is not None:
            padded = rotated(padded, part.signs, part.block)
        # x is also rotated by a matrix of norm sqrt(block), so the weight's scale is 1 / block
        got = part.values(slice(None)).astype(np.float64) * part.block
        lost += ((got - padded) ** 2).sum() / part.block
    assert lost / (exact**2).sum() == pytest.approx(weight.w_error, rel=0.2, abs=1e-12)
    covered = [i for part in weight.parts for i in range(k)[part.columns]]
    assert covered == list(range(k))


def test_int16_products_never_round_activations_to_8_bits():
    tensor = QTensor.quantize(rows(64, 256, 1, 0.3), "q4_0")

    assert quantise.choose(tensor, int16=False).scheme.name == "int8"
    assert quantise.choose(tensor, int16=True).scheme.passes == 2


def test_a_weight_that_int8_cannot_hold_stays_in_half_precision():
    """The sizes of the blocks differ by orders of magnitude, so one scale a row is not enough."""
    sizes = np.repeat(10.0 ** np.arange(-4, 4), 64).astype(np.float32)
    w = rows(16, 512, 2, 0) * sizes
    # Almost all values of the largest block are 0.
    w[:, 448:] *= np.where(np.arange(64) == 0, 1e-7, 0)
    tensor = QTensor.quantize(w, "f16")

    errors = {r.scheme.name: r.error for r in quantise.candidates(tensor, int16=False)}

    assert min(error for name, error in errors.items() if name != "fp16") > quantise.BUDGET
    assert quantise.choose(tensor, int16=False).scheme.name == "fp16"


def test_a_weight_above_half_precision_is_refused():
    tensor = QTensor.quantize(np.full((1, 32), 1e6), "f32")

    with pytest.raises(NumericsError, match="65504"):
        quantise.quantise_weight(tensor, quantise.BY_NAME["fp16"])


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-140, 1e-30, 1.0, 3.4e38])
def test_halves_keep_rows_of_any_size(size):
    """The error is at most 2^-12 of the largest value of the row, or 2^-151 in very small rows."""
    x = np.array([[size, -size / 2, 0, size / 3]], np.float32)

    error = abs(quantise.to_float16(x) - x.astype(np.float64))

    assert (error <= np.maximum(2.0**-12 * x[0, 0], 2.0**-151)).all()
