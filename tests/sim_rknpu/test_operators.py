"""Test operators of networks that take several jobs, whose data stay in the NPU's buffers.

Programs of others run these operators on an RK3588.  Their published results decide the bounds
(gregordinary/rocket-userspace e067786, the headers of its tests): the ones marked "exact" are so on
the chip; the others are bounded there by the errors of the LUT.
"""

import math

import numpy as np
import pytest

from tests.sim_rknpu.alone import Pooling, activation
from tests.sim_rknpu.client import Rocket
from tests.sim_rknpu.jobs import (
    allocate,
    convolve,
    convolve_cube,
    cube,
    integers,
    look_up_cube,
    pool_cube,
    shifted_lut,
    sigmoid,
    unit_lut,
)
from tests.sim_rknpu.programs import Convolution, operand, unpack_cube

HALF = ("fp16", "fp16")


def identity(channels, values=None):
    """Return kernels that multiply each channel by one of *values*, by default 1."""
    w = np.zeros((channels, channels, 1, 1), np.float16)
    w[np.arange(channels), np.arange(channels), 0, 0] = 1 if values is None else values
    return w


def combined(driver, which, x, other, shape):
    """Combine two cubes of float16 element by element: a product with 1, and an operand."""
    channels, height, width = shape
    stages = operand(which, other.iova, height * width)
    conv = Convolution(channels, height, width, channels, types=HALF, stages=stages)
    return convolve_cube(driver, conv, x, identity(channels))


def read(buffer, shape):
    return unpack_cube(buffer.bytes, np.float16, *shape)


# --- element by element ----------------------------------------------------------------------


@pytest.mark.parametrize(("which", "low", "high"), [("max", 0, 1), ("min", 1, 3)])
def test_prelu_is_exact(driver, which, low, high):
    """The larger, for slopes above 1 the smaller, of x and slope * x, which is rounded."""
    rng, shape = np.random.default_rng(5), (32, 12, 2)
    slopes = rng.uniform(low, high, 32).astype(np.float16)
    x = rng.standard_normal(shape).astype(np.float16)
    source, conv = cube(driver, x), Convolution(*shape, 32, types=HALF)
    scaled = convolve_cube(driver, conv, source, identity(32, slopes))
    out = combined(driver, which, source, scaled, shape)

    rounded = (x.astype(np.float64) * slopes[:, None, None]).astype(np.float16)
    np.testing.assert_array_equal(read(out, shape), np.where(x >= 0, x, rounded))


def relu_sides(driver, x, shape):
    """Return max(x, 0) and min(x, 0), with a cube of zeros as the operand."""
    zeros = cube(driver, np.zeros(shape, np.float16))
    return [combined(driver, which, x, zeros, shape) for which in ("max", "min")]


def test_a_prelu_of_any_slope_is_the_sum_of_its_sides(driver):
    rng, shape = np.random.default_rng(6), (16, 13, 1)
    slopes = rng.uniform(-3, 3, 16).astype(np.float16)
    x = rng.standard_normal((32, 13, 1)).astype(np.float16)
    above, below = relu_sides(driver, cube(driver, x), (32, 13, 1))
    every = identity(32, np.append(slopes, np.zeros(16, np.float16)))
    scaled = convolve_cube(driver, Convolution(32, 13, 1, 32, types=HALF), below, every)
    out = combined(driver, "add", above, scaled, (32, 13, 1))

    small = x[:16].astype(np.float64)
    rounded = (np.minimum(small, 0) * slopes[:, None, None]).astype(np.float16)
    np.testing.assert_array_equal(read(out, shape), np.where(small >= 0, x[:16], rounded))


def erf_gate(x):
    return 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def mish_gate(x):
    return np.tanh(np.log1p(np.exp(x)))


@pytest.mark.parametrize(("gate", "published"), [(sigmoid, 0.03), (erf_gate, 0.03),
                                                 (mish_gate, 0.03)])  # fmt: skip
def test_an_activation_is_a_gate_of_the_lut_times_the_input(driver, gate, published):
    """SiLU, GELU and Mish; on the chip, the largest error is below 0.03 for |x| <= 12."""
    shape = (32, 16, 4)
    x = np.linspace(-12, 12, math.prod(shape)).reshape(shape).astype(np.float16)
    source = cube(driver, x)
    opened = look_up_cube(driver, unit_lut(gate), source)
    out = read(combined(driver, "mul", source, opened, shape), shape)

    true = x.astype(np.float64) * gate(x.astype(np.float64))
    assert abs(out - true).max() <= published


def test_tanh_has_a_sign():
    """(tanh + 1) / 2 in 15 bits, and an offset of half of it; below 0.01 off on the chip."""
    x = np.linspace(-8, 8, 1024).astype(np.float16)
    half = unit_lut(lambda v: (np.tanh(v) + 1) / 2)
    fields = {**vars(half), "offset": -16384, "minus_exponent": 14, "slope": 0}
    with Rocket() as driver:
        out = look_up_cube(driver, type(half)(**fields), driver.buffer(x.tobytes()))

    assert abs(out.bytes.view(np.float16) - np.tanh(x.astype(np.float64))).max() <= 0.01


@pytest.mark.parametrize(
    ("f", "low"),
    [
        (lambda x: np.where(x >= 0, x, 0.1 * x), -0.8),
        (lambda x: np.log1p(np.exp(x)), 0.0),
        (np.abs, 0.0),
    ],
    ids=["leaky ReLU", "softplus", "magnitude"],
)
def test_a_function_of_one_table_has_no_step_at_zero(f, low):
    """All inputs use the positive half of the indices: the error is that of the interpolation."""
    x = np.linspace(-8, 8, 4096).astype(np.float16)
    lut = shifted_lut(f, -8, 8, low, 4)
    with Rocket() as driver:
        out = look_up_cube(driver, lut, driver.buffer(x.tobytes()))

    got, true = out.bytes.view(np.float16).astype(np.float64), f(x.astype(np.float64))
    # An entry's rounding and truncation, the step of an index, the float16, and the bend at 0.
    step = 16 / 512
    bound = 2 * 2.0**-11 + 16 / 16384 + 2.0**-11 * abs(true) + step / 4
    assert (abs(got - true) <= bound).all()


# --- sums over an axis -----------------------------------------------------------------------


def test_a_softmax_takes_a_lut_and_two_products():
    """The host finds the largest value and the reciprocals; errors as published for the chip."""
    rows, columns = 64, 96
    x = np.random.default_rng(7).standard_normal((rows, columns)) * 3
    x = (x - x.max(axis=1, keepdims=True)).astype(np.float16)
    shape = (columns, rows, 1)
    ones = np.ones((16, columns, 1, 1), np.float16)
    with Rocket() as driver:
        source = cube(driver, x.T.reshape(shape))
        powers = look_up_cube(driver, shifted_lut(np.exp, -16, 0), source)
        summing = Convolution(columns, rows, 1, 16, types=("fp16", "fp32"))
        sums = unpack_cube(convolve_cube(driver, summing, powers, ones).bytes, np.float32, 16,
                           rows, 1)[0, :, 0]  # fmt: skip
        shares = np.broadcast_to((1 / sums).astype(np.float16)[:, None], shape)
        out = read(combined(driver, "mul", powers, cube(driver, shares), shape), shape)[:, :, 0].T

    true = np.exp(x.astype(np.float64))
    true /= true.sum(axis=1, keepdims=True)
    assert (abs(out - true) <= np.where(true > 1e-3, 0.03 * true, 2e-3)).all()
    assert abs(out.astype(np.float64).sum(axis=1) - 1).max() <= 0.01


def test_running_sums_are_a_product_with_a_triangle(driver):
    """Sums of small integers are exact in float32."""
    rng, rows, columns = np.random.default_rng(8), 20, 64
    x = integers(rng, (columns, rows, 1), np.float16, -8, 9)
    triangle = np.tril(np.ones((columns, columns), np.float16))[:, :, None, None]
    conv = Convolution(columns, rows, 1, columns, types=("fp16", "fp32"))

    np.testing.assert_array_equal(convolve(driver, conv, x, triangle), np.cumsum(x, axis=0))


@pytest.mark.parametrize("method", ["mean", "max", "min"])
def test_a_plane_is_pooled_in_several_passes(driver, method):
    """Extremes are exact; each pass of a mean rounds its shares of 1/k and its result."""
    channels, passes = 24, [(4, 3), (2, 5), (3, 2)]
    size = [math.prod(axis) for axis in zip(*passes, strict=True)]
    x = np.random.default_rng(9).uniform(1, 2, (channels, *size)).astype(np.float16)
    buffer = cube(driver, x)
    for kernel in passes:
        buffer = pool_cube(driver, Pooling(method, channels, *size, kernel, kernel), buffer)
        size = [n // k for n, k in zip(size, kernel, strict=True)]

    got = read(buffer, (channels, 1, 1))[:, 0, 0].astype(np.float64)
    wide = x.astype(np.float64)
    if method == "mean":
        true = wide.mean(axis=(1, 2))
        assert (abs(got - true) <= 3 * len(passes) * 2.0**-11 * true).all()
    else:
        np.testing.assert_array_equal(got, getattr(wide, method)(axis=(1, 2)))


@pytest.mark.parametrize(("method", "tolerance"), [("max", 0), ("mean", 1)])
def test_bytes_are_pooled_as_float16(method, tolerance):
    """The NPU pools float16 alone; every int8 is one, and a mean is one off at most."""
    x = integers(np.random.default_rng(10), (16, 12, 12), np.float16)
    pool = Pooling(method, 16, 12, 12, (3, 2), (3, 2))
    with Rocket() as driver:
        got = read(pool_cube(driver, pool, cube(driver, x)), (16, *pool.out_shape))

    cells = x.astype(np.float64).reshape(16, 4, 3, 6, 2)
    true = cells.max(axis=(2, 4)) if method == "max" else np.rint(cells.mean(axis=(2, 4)))
    assert abs(np.rint(got.astype(np.float64)) - true).max() <= tolerance


# --- transposed convolutions -----------------------------------------------------------------


def scattered(x, w, stride, pad):
    """Return the transposed convolution of *x* and *w* ``[ic][oc][kh][kw]`` by its definition."""
    _, height, width = x.shape
    _, oc, kh, kw = w.shape
    out = np.zeros((oc, (height - 1) * stride[0] + kh, (width - 1) * stride[1] + kw))
    for y, z in np.ndindex(height, width):
        part = np.einsum("i,ioab->oab", x[:, y, z].astype(float), w.astype(float))
        out[:, y * stride[0] :, z * stride[1] :][:, :kh, :kw] += part
    return out[:, pad[0] : out.shape[1] - pad[0], pad[1] : out.shape[2] - pad[1]]


def dilated(x, stride):
    """Return *x* with zeros between its pixels."""
    channels, height, width = x.shape
    wide = np.zeros((channels, (height - 1) * stride[0] + 1, (width - 1) * stride[1] + 1), x.dtype)
    wide[:, :: stride[0], :: stride[1]] = x
    return wide


@pytest.mark.parametrize(
    ("kernel", "stride", "pad"),
    [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((4, 3), (2, 1), (1, 0)),
     ((3, 5), (1, 3), (2, 2))],
)  # fmt: skip
def test_a_transposed_convolution_is_one_of_pixels_apart(driver, kernel, stride, pad):
    """The kernels are turned by half a turn; small integers are exact."""
    rng = np.random.default_rng(11)
    x = integers(rng, (32, 5, 4), np.float16, -3, 4)
    w = integers(rng, (32, 16, *kernel), np.float16, -3, 4)
    wide = dilated(x, stride)
    around = [k - 1 - p for k, p in zip(kernel, pad, strict=True) for _ in range(2)]
    conv = Convolution(32, *wide.shape[1:], 16, kernel, (1, 1), tuple(around),
                       types=("fp16", "fp32"))  # fmt: skip
    turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)

    np.testing.assert_array_equal(
        convolve(driver, conv, wide, turned), scattered(x, w, stride, pad)
    )


@pytest.mark.parametrize("factor", [(2, 2), (3, 2)])
def test_pixels_are_repeated_by_a_depthwise_convolution(driver, factor):
    x = np.random.default_rng(12).standard_normal((32, 6, 5)).astype(np.float16)
    wide = dilated(x, factor)
    around = tuple(k - 1 for k in factor for _ in range(2))
    conv = Convolution(32, *wide.shape[1:], 32, factor, (1, 1), around, depthwise=True)
    out = convolve(driver, conv, wide, np.ones((32, *factor), np.float16))

    np.testing.assert_array_equal(out, x.repeat(factor[0], axis=1).repeat(factor[1], axis=2))


# --- operators of one job --------------------------------------------------------------------


def test_tasks_of_three_kinds_share_a_job():
    """A convolution, the LUT on its result, and a pooling of that, without the CPU in between."""
    rng, shape = np.random.default_rng(13), (32, 8, 8)
    x, w = integers(rng, shape, np.float16, -2, 3), integers(rng, (32, 32, 1, 1), np.float16, -1, 2)
    conv = Convolution(*shape, 32, types=HALF)
    lut, pool = unit_lut(sigmoid), Pooling("max", *shape, (2, 2), (2, 2))
    with Rocket() as driver:
        source, weights = cube(driver, x), driver.buffer(conv.pack_weights(w).tobytes())
        sums, opened = allocate(driver, 32 * 64 * 2), allocate(driver, 32 * 64 * 2)
        out = allocate(driver, 32 * 16 * 2)
        programs = [
            conv.words(source.iova, weights.iova, sums.iova),
            activation(lut, 32 * 64 // 8, sums.iova, opened.iova),
            pool.words(opened.iova, out.iova),
        ]
        codes = [driver.buffer(np.append(p, np.zeros(len(p) % 2, np.uint64)).tobytes())
                 for p in programs]  # fmt: skip
        tasks = [(code.iova, len(p)) for code, p in zip(codes, programs, strict=True)]
        driver.run(tasks, [source, weights, *codes], [sums, opened, out])
        got = read(out, (32, 4, 4))

    gates = lut.apply(conv.sums(x, w).astype(np.float32))
    np.testing.assert_array_equal(got, pool.oracle(gates))
