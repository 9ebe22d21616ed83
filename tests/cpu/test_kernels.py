"""Tests of matmul kernels: every set has the bits of the portable one, which meets the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import layout
from npurt.cpu.pool.engine import Input, empty
from npurt.quant.activations import quantize_activations
from npurt.quant.types import find
from tests import oracle
from tests.cpu import cases
from tests.cpu.foreign import same

ROWS_OF_X = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 48, 63, 64, 65)  # below, at and above each tile
ROWS_OF_W = (1, 15, 16, 17, 31, 33, 63, 64, 65)  # panels of 16
PLAIN = np.array([0.0123, -0.5, 1, 3e-3, -7e-2], np.float16)
HUGEST = 1e38  # sums of absolute products above this may overflow float32

formats = st.sampled_from(cases.INTEGER)


def columns(fmt):
    """Return widths around a record of 256 columns, and the smallest width."""
    block = find(fmt).block
    return (256, 512, 768) if block == 256 else (32, 64, 96, 224, 256, 288, 544)


def product(fmt, n, k, m, *, seed=0, scales=cases.SCALES, int16=False):
    """Return the case of one matmul, and its operands."""
    rng = cases.rng_of(fmt, n, k, m, seed)
    w, x = cases.weight(rng, fmt, n, k, scales), cases.activations(rng, m, k)
    return (lambda program: cases.matmul(program, w, x, int16=int16)), w, x


@given(st.data())
def test_every_kernel_set_equals_the_portable_one(run, scalar, data):
    """For any bytes, the image, the codes of the activations and the product are equal."""
    fmt = data.draw(formats)
    case, _, _ = product(
        fmt,
        data.draw(st.sampled_from(ROWS_OF_W)),
        data.draw(st.sampled_from(columns(fmt))),
        data.draw(st.sampled_from(ROWS_OF_X)),
        seed=data.draw(st.integers(0, 2**32)),
        scales=data.draw(st.sampled_from([cases.SCALES, PLAIN, None])),
        int16=data.draw(st.booleans()),
    )

    for have, want in zip(run(case), scalar(case), strict=True):
        same(have, want)


@pytest.mark.parametrize("fmt", cases.INTEGER)
@pytest.mark.parametrize("m", ROWS_OF_X)
def test_every_tile_edge_equals_the_portable_kernels(run, scalar, fmt, m):
    case, _, _ = product(fmt, 33, columns(fmt)[-1], m)

    for have, want in zip(run(case), scalar(case), strict=True):
        same(have, want)


@pytest.mark.parametrize("fmt", cases.INTEGER)
@given(st.data())
def test_products_lie_within_the_rounding_of_float32(run, fmt, data):
    n, m = data.draw(st.sampled_from(ROWS_OF_W)), data.draw(st.sampled_from([1, 2, 9]))
    k = data.draw(st.sampled_from(columns(fmt)))
    case, w, x = product(fmt, n, k, m, seed=data.draw(st.integers(0, 2**32)))
    reference, bound, total = oracle.integer_matmul(x, w)

    y = run(case)[-1]

    fits = total < HUGEST
    oracle.assert_within(y[fits], reference[fits], bound[fits])


@pytest.mark.parametrize("fmt", cases.INTEGER)
@pytest.mark.parametrize("m", [1, 2, 3, 9])
def test_int16_products_multiply_numbers_of_16_bits(run, fmt, m):
    case, w, _ = product(fmt, 40, columns(fmt)[-1], m, scales=PLAIN, int16=True)

    _, codes, blocks, remainders, y = run(case)

    numbers = 255 * codes.astype(np.int32) + remainders
    reference, bound, _ = oracle.product_of_codes(numbers, blocks.view(np.float32)[:, ::8], w)
    oracle.assert_within(y, reference, bound)


@pytest.mark.parametrize("fmt", cases.INTEGER)
@pytest.mark.parametrize("byte", [0x00, 0x80, 0xFF])
@pytest.mark.parametrize("m", [1, 2, 9])
def test_the_largest_numbers_of_16_bits_meet_every_code(run, scalar, fmt, byte, m):
    """Blocks of 126 + 127/255 with a single 127 have codes of 126 and remainders of 127."""
    w = cases.weight(cases.rng_of(fmt), fmt, 16, 256, np.array([1], np.float16))
    cases.fill(w, byte)
    x = np.full((m, 256), 126 + 127 / 255, np.float32)
    x[:, ::32] = 127
    numbers = np.rint(255 * x).astype(np.int32)
    scales = np.full((m, 8), 1 / 255, np.float32)
    reference, bound, total = oracle.product_of_codes(numbers, scales, w)

    _, _, _, remainders, y = run(lambda program: cases.matmul(program, w, x, int16=True))

    assert remainders[:, 1:32].min() == 127
    same(y, scalar(lambda program: cases.matmul(program, w, x, int16=True))[-1])
    fits = total < HUGEST
    oracle.assert_within(y[fits], reference[fits], bound[fits])


@pytest.mark.parametrize("fmt", cases.INTEGER)
@pytest.mark.parametrize("m", [1, 5])
def test_products_are_exact_where_float32_holds_them(run, fmt, m):
    """Scales that are powers of two make every term an integer times a power of two.

    The sums stay small enough for float32.  A single 127 in a block of x makes its scale 1, so that
    the other codes equal the values.
    """
    rng = cases.rng_of(fmt, m)
    k = 256
    w = cases.weight(rng, fmt, 48, k, np.array([1], np.float16))
    if fmt == "mxfp4":
        w.blocks["e"] = 128  # 2^0
    x = rng.integers(-4, 5, (m, k)).astype(np.float32) * (rng.random((m, k)) < 0.1)
    x[:, ::32] = 127
    terms = w.dequantize().astype(np.float64)
    exact = x.astype(np.float64) @ terms.T
    assert (abs(x) @ abs(terms).T).max() < 2**24
    assert np.array_equal(quantize_activations(x)[0], x)

    y = run(lambda program: cases.matmul(program, w, x))[-1]

    np.testing.assert_array_equal(y, exact)


@pytest.mark.parametrize("fmt", cases.INTEGER)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("m", [1, 3, 9])
def test_saturated_activations_meet_every_code(run, scalar, fmt, sign, m):
    """Activations of 127 times the largest codes give the largest sums of 16 bits."""
    rng = cases.rng_of(fmt)
    k = 256
    for byte in (0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F):
        w = cases.weight(rng, fmt, 16, k, np.array([1], np.float16))
        cases.fill(w, byte)
        x = np.full((m, k), sign * 127, np.float32)
        x[:, 1::2] *= rng.choice([1, -1])
        reference, bound, total = oracle.integer_matmul(x, w)

        y = run(lambda program, w=w, x=x: cases.matmul(program, w, x))[-1]

        same(y, scalar(lambda program, w=w, x=x: cases.matmul(program, w, x))[-1])
        fits = total < HUGEST
        oracle.assert_within(y[fits], reference[fits], bound[fits])


@pytest.mark.parametrize("int16", [False, True])
@pytest.mark.parametrize("fmt", [*cases.INTEGER, *cases.DENSE])
def test_a_row_is_the_same_alone_and_in_a_batch(run, fmt, int16):
    """Kernels multiply many rows differently from few; results must not depend on the batch."""
    case, w, x = product(fmt, 40, 512, 19, scales=PLAIN, int16=int16)
    together = run(case)[-1]

    for start, stop in ((0, 1), (7, 8), (18, 19), (3, 5), (4, 7), (8, 12), (9, 14)):
        part = x[start:stop]
        few = run(lambda program, part=part: cases.matmul(program, w, part, int16=int16))[-1]
        same(few, together[start:stop])


@pytest.mark.parametrize("fmt", cases.DENSE)
@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 1), (16, 5, 1), (65, 96, 2), (70, 33, 9)])
def test_float_weights_multiply_in_order(run, scalar, fmt, n, k, m):
    rng = cases.rng_of(n, k, m)
    values = rng.standard_normal((n, k), dtype=np.float32)
    w = cases.QTensor.quantize(values, fmt)
    x = rng.standard_normal((m, k), dtype=np.float32)
    reference, bound = oracle.dense_matmul(x, w)

    y = run(lambda program: cases.matmul(program, w, x))[-1]

    oracle.assert_within(y, reference, bound)
    same(y, scalar(lambda program: cases.matmul(program, w, x))[-1])


def test_a_value_that_is_not_finite_shows_in_its_row_alone(run):
    case, _, x = product("q4_k", 16, 512, 3, scales=PLAIN)
    x[1, 300] = np.nan

    y = run(case)[-1]

    assert np.isnan(y[1]).all()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("m", [1, 6])
def test_three_weights_with_biases_lie_side_by_side(run, m):
    """Three weights of different formats and sizes write adjacent columns of one result."""
    rng = cases.rng_of(m)
    k = 256
    x = cases.activations(rng, m, k)
    tensors = [
        cases.weight(rng, fmt, n, k, PLAIN) for fmt, n in (("q4_k", 37), ("q6_k", 16), ("q8_0", 5))
    ]
    biases = [rng.standard_normal(37, dtype=np.float32), None, np.float32([1, -1, 2, 0, 1e-3])]

    def fused(program):
        program.rows = m
        images = [cases.packed(program, w) for w in tensors]
        source = Input(m, k, quantised=True)
        source.values[:] = x
        program.quant(source)
        y = empty(m, 60)
        y[:] = np.nan
        program.matmul(source, images, y, biases=biases)
        return [y]

    (y,) = run(fused)

    column = 0
    for w, bias in zip(tensors, biases, strict=True):
        n = w.shape[0]
        alone = run(lambda program, w=w: cases.matmul(program, w, x))[-1]
        same(y[:, column : column + n], alone if bias is None else alone + bias)
        column += n
    assert np.isnan(y[:, column:]).all()  # two columns after the last weight


def test_a_device_multiplies_more_rows_than_fit_a_run(run):
    rng = cases.rng_of("rows")
    w = cases.weight(rng, "q4_0", 20, 64, PLAIN)
    x = cases.activations(rng, 1030, 64)
    out = np.empty((1030, 20), np.float32)

    with CpuDevice(threads=1, isa=run.isa) as device:
        device.matmul(x, device.pack(w), out)

    reference, bound, _ = oracle.integer_matmul(x, w)
    oracle.assert_within(out, reference, bound)


def test_what_has_an_offset_has_no_shift_and_the_other_way():
    """Kernels rely on this: they subtract a shift or add an offset, never both."""
    for fmt in layout.table().values():
        assert (fmt.shift < 0) == bool(fmt.offset), fmt.name


# --- Parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [*cases.INTEGER, *cases.DENSE])
def test_the_first_rows_of_a_weight_are_a_weight(fmt):
    """The first rows, rounded up to whole panels, are a weight in the same memory."""
    rng = cases.rng_of("first", fmt)
    w, k = cases.stack(rng, fmt, 1, 64, 512)[0], 512
    x = cases.activations(rng, 3, k)
    with CpuDevice(1) as device:
        packed = device.pack(w)
        whole = np.empty((3, 64), np.float32)
        device.matmul(x, packed, whole)
        for n, rows in ((1, 16), (16, 16), (33, 48), (64, 64), (99, 64)):
            part, out = packed.first(n), np.empty((3, rows), np.float32)
            device.matmul(x, part, out)

            assert (part.n, part.nbytes) == (rows, packed.nbytes * rows // 64)
            assert np.shares_memory(part.image.data, packed.image.data)
            same(out, whole[:, :rows])
