"""Tests of rotary tables, against the formulas of the papers in plain Python."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import ModelFormatError
from npurt.llm.arch.rope import frequencies, tables
from npurt.llm.file.config import Config, Scaling
from tests.llm import reference, tiny

CONFIG = Config(
    architecture="llama",
    n_layers=1,
    n_context=512,
    width=128,
    n_ff=288,
    n_heads=2,
    n_kv_heads=2,
    head_width=64,
    n_vocab=608,
    eps=1e-5,
    rope_base=10000.0,
    rotated=64,
    scaling=Scaling(),
    attention_scale=0.125,
)
widths = st.sampled_from([16, 32, 64, 128])
bases = st.floats(1e3, 1e7)


def config(width, base, **scaling):
    return replace(
        CONFIG, head_width=width, rotated=width, rope_base=base, scaling=Scaling(**scaling)
    )


@given(widths, bases)
def test_plain_frequencies_are_powers_of_the_base(width, base):
    radians, factor = frequencies(config(width, base))

    wanted = [math.exp(-2 * i / width * math.log(base)) for i in range(width // 2)]
    np.testing.assert_allclose(radians, wanted, rtol=1e-13)
    assert factor == 1


@given(widths, bases, st.floats(0.5, 64))
def test_linear_scaling_divides_positions(width, base, by):
    """Chen et al. 2023: position p of the stretched context is p / factor of the original."""
    plain, _ = frequencies(config(width, base))
    radians, factor = frequencies(config(width, base, kind="linear", factor=by))

    np.testing.assert_allclose(1000 * radians, 1000 / by * plain, rtol=1e-13)
    assert factor == 1


def yarn(width, base, by, original, fast, slow):
    """Return radians per position by Peng et al. 2023, sections 3.2 to 3.4.

    Dimension i turns r_i = original / (2 pi base^(2i / width)) times in the original context.  The
    index of the dimension that turns r times is width ln(original / (2 pi r)) / (2 ln base).  The
    interpolation grows linearly between the index for `fast`, rounded down, and the index for
    `slow`, rounded up.
    """
    index = [width * math.log(original / (2 * math.pi * r), base) / 2 for r in (fast, slow)]
    low, high = max(math.floor(index[0]), 0), min(math.ceil(index[1]), width - 1)
    radians = []
    for i in range(width // 2):
        plain = 1 / base ** (2 * i / width)
        if i <= low:
            interpolated = 0.0
        elif i >= high:
            interpolated = 1.0
        else:
            interpolated = (i - low) / (high - low)
        radians.append(plain * (1 - interpolated) + plain / by * interpolated)
    return np.array(radians)


@given(
    widths,
    bases,
    st.floats(1, 64),
    st.sampled_from([64, 2048, 4096, 32768]),
    st.floats(16, 64),
    st.floats(0.5, 4),
    st.floats(0.5, 2),
)
def test_yarn_interpolates_slow_dimensions_and_leaves_fast_ones(
    width, base, by, original, fast, slow, attention
):
    radians, factor = frequencies(
        config(
            width,
            base,
            kind="yarn",
            factor=by,
            original_context=original,
            attention_factor=attention,
            beta_fast=fast,
            beta_slow=slow,
        )
    )

    np.testing.assert_allclose(radians, yarn(width, base, by, original, fast, slow), rtol=1e-9)
    assert factor == pytest.approx((1 + math.log(by) / 10) * attention, rel=1e-13)


def test_yarn_by_hand():
    """Qwen2.5 has base 1e6, width 128, factor 4, original context 32768, and betas 32 and 1.

    ln(32768 / 64 pi) / ln 1e6 * 64 = 23.6 and ln(32768 / 2 pi) / ln 1e6 * 64 = 39.7.  Dimensions
    up to 23 are unchanged, dimensions from 40 are divided by 4, and dimension 31 is interpolated
    with weight 8/17.
    """
    radians, factor = frequencies(config(128, 1e6, kind="yarn", factor=4.0, original_context=32768))
    plain, _ = frequencies(config(128, 1e6))

    np.testing.assert_array_equal(radians[:24], plain[:24])
    assert radians[24] < plain[24]
    np.testing.assert_allclose(radians[40:], plain[40:] / 4, rtol=1e-15)
    assert radians[31] == pytest.approx(plain[31] * (9 + 8 / 4) / 17)
    assert factor == pytest.approx(1.1386294, abs=1e-7)


def test_llama_3_divides_by_its_tensor():
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    radians, _ = frequencies(CONFIG, divisors)

    np.testing.assert_allclose(radians * divisors, frequencies(CONFIG)[0], rtol=1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_divisors_that_are_no_positive_numbers_are_refused(bad):
    divisors = np.ones(32, np.float32)
    divisors[5] = bad

    with pytest.raises(ModelFormatError, match="rope_freqs"):
        frequencies(CONFIG, divisors)


@pytest.mark.parametrize("positions", [1, 4095, 4096, 4097, 9000])
def test_tables_are_cosines_and_sines_of_every_position(positions):
    scaled = replace(CONFIG, scaling=Scaling("yarn", 4.0, 64, 1.5))
    radians, factor = frequencies(scaled)

    cos, sin = tables(scaled, positions)

    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (positions, 32)
    for p in {0, positions // 2, positions - 1}:
        np.testing.assert_allclose(cos[p], np.cos(p * radians) * factor, rtol=0, atol=2.0**-23)
        np.testing.assert_allclose(sin[p], np.sin(p * radians) * factor, rtol=0, atol=2.0**-23)


@pytest.mark.parametrize("model", ["llama3", "qwen2"])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_a_scaled_model_has_the_logits_of_the_formulas(tmp_path, model, kind):
    arch = {"llama3": "llama", "qwen2": "qwen2"}[model]
    source = tiny.path(model, "f32")
    file = tiny.read(source)
    keys = [("type", 8, kind), ("factor", 6, 2.5), ("original_context_length", 4, 64)]
    for name, number, value in keys:
        file = file.with_key(f"{arch}.rope.scaling.{name}", number, value)
    metadata, weights, _ = reference.load(source)
    divisors = weights.get("rope_freqs.weight", 1)
    base = metadata[f"{arch}.rope.freq_base"]
    if kind == "linear":
        rotation = reference.radians(metadata, weights) / 2.5, 1.0
    else:  # scaling applies to the frequency before its divisor
        rotation = yarn(32, base, 2.5, 64, 32, 1) / divisors, 1 + math.log(2.5) / 10
    ids = tiny.ids(model, 100)

    with npurt.Llama(tiny.write(file, tmp_path), kv_type="f32", verify="off") as llm:
        y = llm.eval(ids)

    assert reference.nmse(y, reference.logits(source, ids, rotation=rotation)) < 1e-9
    assert reference.nmse(y, reference.logits(source, ids)) > 1e-3
