"""Tests of the logits of tiny models: they agree with oracles and do not depend on the batches.

The results of quantised files cannot have float accuracy.  Activations are rounded to int8, and an
error far below a step changes the code of a value near the middle of two codes.  Two correct
implementations therefore differ after one layer.  Only the size of this noise can be predicted: a
reference in float64 that rounds activations by the same rule has the same noise.  The mean over
the T x V logits of a prefill has at least T x D / 100 independent terms, because the errors of
positions depend on the same keys and values.  The mean of a correct implementation is therefore
within some 10 % of the reference's.  If any kind of activation loses one bit, the mean is at least
1.5 times as large (see `test_that_noise_would_show_a_lost_bit`).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.cpu.kernels import abi
from tests.llm import reference, tiny
from tests.llm.reference import nmse

# An F32 model rounds to 2^-24 in some 20 successive products of up to 352 terms.  The signs of the
# errors are random, so errors grow with sqrt(352): 20 * 352 * 2^-48 = 2.5e-11 of the squares.  The
# logits of Transformers are float32, too.  The oracles' README allows 1e-9 between any two float
# implementations.
FLOAT_NMSE = 1e-9
NOISE = 1.25  # bound on the ratio of mean quantisation noise in two realisations

# NMSE between llama.cpp's logits for the same files (lcpp_*_prefill30.npy) and the exact logits.
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


# --- Agreement with the oracles -------------------------------------------------------------------


@pytest.mark.parametrize(("model", "kind"), tiny.FILES)
def test_the_reference_gives_the_oracles_logits(model, kind):
    """`reference`, which the tests below use, agrees with results of other programs."""
    y = reference.logits(tiny.path(model, kind), tiny.ids(model))

    if kind == "f32":
        assert nmse(tiny.array(model, "hf_f32_prefill"), y) < FLOAT_NMSE
    else:  # also computed in float64, but stored as float32: half an ulp each
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
    """Return the NMSE, or for a mixture of experts the median NMSE of the rows.

    In a mixture, correct rounding may select another expert for some rows.
    """
    if "moe" not in model:
        return nmse(y, exact)
    return np.median([nmse(*pair) for pair in zip(y, exact, strict=True)])


def test_that_noise_would_show_a_lost_bit():
    """Int8 in place of 16 bits, or one bit less for all inputs, exceeds the bound NOISE."""
    path, ids = tiny.path("llama3-256", "q8_0"), tiny.ids("llama3-256")
    exact = reference.logits(path, ids)
    noise = nmse(reference.logits(path, ids, rounding=reference.int8), exact)

    coarse = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, False))
    narrow = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, int16, 63))

    assert nmse(coarse, exact) > 1.5 * noise
    assert nmse(narrow, exact) > 1.5 * noise


@pytest.mark.parametrize(("model", "kind"), [("llama3", "q8_0"), ("qwen2", "q8_0")])
def test_the_output_matrix_multiplies_activations_of_16_bits(tmp_path, model, kind):
    """The layers of this model add nothing, so only the output matrix makes errors.

    The largest value in a block of 32 is about 2.1 sigma, so the step is 2.1 sigma / 127.  The
    squared error of int8 is then 2.3e-5 of the squared activations.  The second int8 reduces the
    step by 255, and the squared error to 3.5e-10.
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
    """Almost all keys and values are rounded to the same float16 as in the reference.

    They differ by 1e-6 before they are rounded to 11 bits, so about one in 500 is rounded to a
    neighbouring value.  This adds 12 / 500 of the squared rounding error.
    """
    path, ids = tiny.path(model, kind), tiny.ids(model)
    rounded = reference.logits(path, ids, cache=np.float16)

    y = prefill(model, kind, kv_type="f16")

    assert nmse(y, rounded) < 0.1 * nmse(rounded, reference.logits(path, ids))


# --- The same by any way of evaluation ------------------------------------------------------------


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
    """Yield a model with batches of 16 tokens, 48 ids, and their logits from a single batch."""
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
