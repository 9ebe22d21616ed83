"""Tests of weight images: for every format, numpy reads from an image what C packed into it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.kernels import abi, layout
from npurt.quant.types import BY_NAME, find
from tests.cpu import cases
from tests.cpu.foreign import same

# Bytes of the image of 16 rows of 256 columns, computed by hand from layout.h, and of the same rows
# in the file.
SIZES = {
    "q4_0": (8 * (32 + 256), 8 * 18 * 16),
    "q4_1": (8 * (64 + 256), 8 * 20 * 16),
    "q5_0": (8 * (32 + 320), 8 * 22 * 16),
    "q5_1": (8 * (64 + 320), 8 * 24 * 16),
    "q8_0": (8 * (32 + 512), 8 * 34 * 16),
    "q2_k": (64 + 2 * 16 * 16 + 8 * 256, 84 * 16),
    "q3_k": (32 + 16 * 16 + 8 * 256, 110 * 16),
    "q4_k": (64 + 2 * 8 * 16 + 8 * 256, 144 * 16),
    "q5_k": (64 + 2 * 8 * 16 + 8 * 320, 176 * 16),
    "q6_k": (32 + 16 * 16 + 8 * 384, 210 * 16),
    "iq4_nl": (8 * (32 + 256), 8 * 18 * 16),
    "iq4_xs": (32 + 8 * 16 + 8 * 256, 136 * 16),
    "mxfp4": (8 * (16 + 256), 8 * 17 * 16),
    "f32": (16384, 16384),
    "f16": (8192, 8192),
    "bf16": (8192, 8192),
}


def stored(w):
    """Return the canonical codes of *w* as in an image: unsigned, or indices into a codebook."""
    canonical = w.canonical()
    if canonical.codebook is not None:
        return canonical.codes
    shift = layout.table()[w.format.number].shift
    return (canonical.codes.astype(np.int16) + (1 << shift if shift >= 0 else 0)).astype(np.uint8)


@pytest.mark.parametrize("fmt", cases.INTEGER)
@given(st.data())
def test_an_image_holds_the_codes_scales_and_offsets_of_the_file(run, fmt, data):
    block = find(fmt).block
    n = data.draw(st.integers(1, 40))
    k = data.draw(st.sampled_from([256, 512] if block == 256 else [32, 96, 256, 288]))
    rng = cases.rng_of(data.draw(st.integers(0, 2**32)))
    w = cases.weight(rng, fmt, n, k, data.draw(st.sampled_from([cases.SCALES, None])))
    canonical = w.canonical()

    (image,) = run(lambda program: [cases.packed(program, w).data])

    with np.errstate(invalid="ignore"):  # an infinite scale times zero
        unpacked = layout.unpack(image, w.format.number, n, k)
    np.testing.assert_array_equal(unpacked.codes, stored(w))
    same(unpacked.scales, canonical.scales)
    assert (unpacked.offsets is None) == (canonical.offsets is None)
    if canonical.offsets is not None:
        same(unpacked.offsets, canonical.offsets)


@pytest.mark.parametrize("fmt", cases.INTEGER)
def test_rows_past_the_last_are_zero(run, fmt):
    """Codes and scales of these rows are zero, so that kernels never compute NaN from them."""
    n, k = 21, 256
    w = cases.weight(cases.rng_of(fmt), fmt, n, k, None)

    (image,) = run(lambda program: [cases.packed(program, w).data])

    with np.errstate(invalid="ignore"):
        rest = layout.unpack(image, w.format.number, 32, k)
    assert not rest.codes[n:].any()
    if fmt == "mxfp4":  # exponents of 0, so 2^-128
        assert (rest.scales[n:] == np.float32(2.0**-128)).all()
    else:
        assert not rest.scales[n:].any()
    assert rest.offsets is None or not rest.offsets[n:].any()


@pytest.mark.parametrize("fmt", cases.DENSE)
def test_floats_lie_sixteen_rows_side_by_side(run, fmt):
    n, k = 21, 33
    w = cases.weight(cases.rng_of(fmt), fmt, n, k)
    bits = w.blocks.view(f"u{w.blocks.itemsize}")

    (image,) = run(lambda program: [cases.packed(program, w).data])

    rows = image.view(bits.dtype).reshape(2, k, 16).transpose(0, 2, 1).reshape(32, k)
    np.testing.assert_array_equal(rows[:n], bits)
    assert not rows[n:].any()


@pytest.mark.parametrize("fmt", BY_NAME)
def test_an_image_takes_what_the_layout_says(fmt):
    """An image is at most a tenth larger than the file, unless a format has fewer than 4 bits."""
    image, file = SIZES[fmt]

    assert abi.lib().npurt_image_bytes(BY_NAME[fmt].number, 16, 256) == image
    assert abi.lib().npurt_image_bytes(BY_NAME[fmt].number, 17, 512) == 4 * image
    assert BY_NAME[fmt].row_bytes(256) * 16 == file
    assert image <= 1.1 * file or 8 * file < 4 * 16 * 256


@pytest.mark.parametrize(("number", "k"), [(2, 33), (12, 32), (12, 288), (99, 256), (-1, 256)])
def test_what_cannot_be_laid_out_has_no_size(number, k):
    assert abi.lib().npurt_image_bytes(number, 16, k) == 0


def test_the_table_of_formats_names_their_gguf_numbers():
    assert {f.name: f.number for f in layout.table().values()} == {
        name: BY_NAME[name].number for name in cases.INTEGER
    }
