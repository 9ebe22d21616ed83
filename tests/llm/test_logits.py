"""Logits of the tiny models: right against other people's, and the same however they are made.

Quantised files cannot be held to float accuracy: their activations are rounded to int8, and an
error far below a step decides which way a value near the middle of two codes goes, so two correct
implementations part within a layer.  What can be derived is the size of that noise: a reference in
float64 that rounds activations by the same rule makes as much of it.  The mean over a prefill's
T x V logits has at least T x D / 100 independent terms (errors of positions share keys and values),
so a correct implementation's mean is within some 10 % of it; losing one bit of any kind of
activation makes it 1.5 times as large or more (see the last test but one).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.cpu.kernels import abi
from tests.llm import reference, tiny
from tests.llm.reference import nmse

# An F32 model rounds to 2^-24 in some 20 products in a row, of up to 352 terms each; random signs
# leave sqrt(352) of them: 20 * 352 * 2^-48 = 2.5e-11 of the squares.  Transformers' own logits are
# float32 too: 1e-9 is what the oracles' README allows between any two float implementations.
FLOAT_NMSE = 1e-9
NOISE = 1.25  # a mean of quantisation noise, to that of another realisation

# NMSE of llama.cpp's logits for the same files (lcpp_*_prefill30.npy) to the exact ones.
LLAMA_CPP = {
    ("llama3", "q8_0"): 5.59e-4,
    ("llama3-256", "q4_0"): 5.82e-4,
    ("llama3-256", "q4_1"): 6.09e-4,
    ("llama3-256", "q4_k_m"): 1.24e-3,
    ("llama3-256", "q6_k"): 1.21e-3,
    ("llama3-256", "q8_0"): 5.90e-4,
    ("llama3-256", "iq4_nl"): 6.39e-4,
    ("qwen2", "q8_0"): 6.40e-4,
    ("qwen3", "q8_0"): 5.25e-4,
    ("qwen3moe", "q8_0"): 4.13e-4,
    ("qwen3moe", "mxfp4"): 4.10e-4,
    ("qwen35", "q8_0"): 4.64e-3,
}
FLOATS = [(model, "f32") for model in ("llama3", "qwen2", "qwen3", "qwen3moe", "qwen35")]


def open_tiny(model, kind, **options):
    options = {"n_ctx": 160, "kv_type": "f32", "verify": "off"} | options
    return npurt.Llama(tiny.path(model, kind), **options)


def prefill(model, kind, **options):
    """Return the logits of all ids, evaluated at once."""
    with open_tiny(model, kind, **options) as llm:
        return llm.eval(tiny.ids(model))


# --- Right ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "kind"), tiny.FILES)
def test_the_reference_gives_the_oracles_logits(model, kind):
    """The tests below rest on `reference`: it must agree with numbers that others made."""
    y = reference.logits(tiny.path(model, kind), tiny.ids(model))

    if kind == "f32":
        assert nmse(tiny.array(model, "hf_f32_prefill"), y) < FLOAT_NMSE
    else:  # float64 there too, but kept as float32: half an ulp each
        exact = tiny.array(model, f"np64_{kind}_prefill30")
        np.testing.assert_allclose(y[tiny.array(model, "rows")], exact, rtol=2.0**-24, atol=1e-12)


@pytest.mark.parametrize(("model", "kind"), FLOATS)
def test_a_prefill_of_float_weights_gives_transformers_logits(model, kind):
    assert nmse(prefill(model, kind), tiny.array(model, "hf_f32_prefill")) < FLOAT_NMSE


@pytest.mark.parametrize(("model", "kind"), FLOATS)
def test_token_by_token_float_weights_give_transformers_logits(model, kind):
    ids = tiny.ids(model)
    with open_tiny(model, kind) as llm:
        llm.eval(ids[:100])
        rows = [llm.eval([token])[0] for token in ids[100:]]

    assert nmse(np.stack(rows), tiny.array(model, "hf_f32_decode50")) < FLOAT_NMSE


@pytest.mark.parametrize(("model", "kind"), LLAMA_CPP)
def test_quantised_weights_add_the_noise_of_int8_activations_and_no_more(model, kind):
    ids, rows = tiny.ids(model), tiny.array(model, "rows")
    path = tiny.path(model, kind)
    exact = reference.logits(path, ids)
    rounded = reference.logits(path, ids, rounding=reference.int8)

    y = prefill(model, kind)

    assert noise(y, exact, model) < NOISE * noise(rounded, exact, model)
    assert nmse(y[rows], tiny.array(model, f"np64_{kind}_prefill30")) < LLAMA_CPP[model, kind]


def noise(y, exact, model):
    """Return the NMSE; of a mixture of experts that of the median row.

    Some of its rows go to another expert for a difference that is no error.
    """
    if "moe" not in model:
        return nmse(y, exact)
    return np.median([nmse(*pair) for pair in zip(y, exact, strict=True)])


def test_that_noise_would_show_a_lost_bit():
    """Rounding q, k, v and the head to int8 alone, or any input to 7 bits, is more than NOISE."""
    path, ids = tiny.path("llama3-256", "q8_0"), tiny.ids("llama3-256")
    exact = reference.logits(path, ids)
    noise = nmse(reference.logits(path, ids, rounding=reference.int8), exact)

    coarse = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, False))
    narrow = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, int16, 63))

    assert nmse(coarse, exact) > 1.5 * noise
    assert nmse(narrow, exact) > 1.5 * noise


@pytest.mark.parametrize(("model", "kind"), [("llama3", "q8_0"), ("qwen2", "q8_0")])
def test_the_output_matrix_multiplies_activations_of_16_bits(tmp_path, model, kind):
    """In a model whose layers add nothing, its product is all there is.

    A block of 32 has its largest at 2.1 sigma: a step of 2.1 / 127, the squares of whose rounding
    are 2.3e-5 of the activations'; the second int8 leaves a 255th of the step, 3.5e-10 of them.
    """
    file = tiny.read(tiny.path(model, kind))
    contents = [
        bytes(len(content))
        if "attn_output" in tensor.name or "ffn_down" in tensor.name
        else content
        for tensor, content in zip(file.tensors, tiny.contents(file), strict=True)
    ]
    path = tiny.write(tiny.with_data(file, file.tensors, contents), tmp_path)
    ids = tiny.ids(model)

    with npurt.Llama(path, n_ctx=160, verify="off") as llm:
        y = llm.eval(ids)

    assert nmse(y, reference.logits(path, ids)) < 1e-9


@pytest.mark.parametrize(("model", "kind"), FLOATS)
def test_a_half_precision_cache_rounds_keys_and_values_and_nothing_else(model, kind):
    """The reference rounds the same values, but for some.

    Ours differ by 1e-6 before they are rounded to 11 bits, so that one in some 500 falls on the
    other side of a step: that adds 12 / 500 of the rounding's squares.
    """
    path, ids = tiny.path(model, kind), tiny.ids(model)
    rounded = reference.logits(path, ids, cache=np.float16)

    y = prefill(model, kind, kv_type="f16")

    assert nmse(y, rounded) < 0.1 * nmse(rounded, reference.logits(path, ids))


# --- The same however they are made ---------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize(("model", "kind"), tiny.FILES)
def test_decode_equals_prefill_bit_for_bit(model, kind, kv_type):
    ids = tiny.ids(model, 60)
    with open_tiny(model, kind, kv_type=kv_type) as llm:
        at_once = llm.eval(ids)
        llm.reset()
        one_by_one = np.stack([llm.eval([token])[0] for token in ids])
        llm.reset()
        last = [llm.eval_last([token]).copy() for token in ids]

    np.testing.assert_array_equal(one_by_one, at_once)
    np.testing.assert_array_equal(last, at_once)


SPLIT = [("llama3-256", "q4_k_m"), ("qwen2", "f32"), ("qwen3moe", "q8_0"), ("qwen35", "q8_0")]


@pytest.fixture(scope="module", params=SPLIT, ids="-".join)
def splitter(request):
    """A model that takes at most 16 tokens at once, and the logits of 48 ids in one piece."""
    ids = tiny.ids(request.param[0], 48)
    with open_tiny(*request.param) as whole, open_tiny(*request.param, n_batch=16) as llm:
        yield llm, ids, whole.eval(ids)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_any_split_into_batches_gives_the_same_logits(splitter, sizes):
    llm, ids, whole = splitter
    llm.reset()
    at = 0
    for size in [*sizes, len(ids)]:
        part = ids[at : at + size]
        np.testing.assert_array_equal(llm.eval(part), whole[at : at + size])
        at += len(part)

    assert llm.history == tuple(ids)


@given(start=st.integers(0, 47), size=st.integers(1, 40))
def test_the_last_logits_are_the_last_of_all_logits(splitter, start, size):
    llm, ids, whole = splitter
    llm.reset()
    llm.eval(ids[:start])

    y = llm.eval_last(ids[start : start + size])

    np.testing.assert_array_equal(y, whole[min(start + size, len(ids)) - 1])


@pytest.mark.parametrize("model", tiny.TYPES)
def test_every_kernel_set_gives_the_same_logits(model, monkeypatch):
    kind = tiny.TYPES[model][-1] if model != "llama3-256" else "q4_k_m"
    best = prefill(model, kind)
    for name in abi.isas():
        monkeypatch.setenv("NPURT_CPU_ISA", name)
        with open_tiny(model, kind) as llm:
            assert name in llm.device.caps.detail
            np.testing.assert_array_equal(llm.eval(tiny.ids(model)), best)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(("model", "kind"), SPLIT)
def test_any_number_of_threads_gives_the_same_logits(model, kind, n_threads):
    ids = tiny.ids(model)
    with open_tiny(model, kind, n_threads=n_threads) as llm:
        assert llm.threads == n_threads
        y = llm.eval(ids[:100])
        after = [llm.eval([token])[0] for token in ids[100:]]

    np.testing.assert_array_equal(np.concatenate([y, after]), prefill(model, kind, n_threads=1))
