"""Tests of architectures with windows, caps, sinks, scales, other norms and units, on all devices.

tests/data/make/tiny_models.py made the files and documents what each exercises.  The oracle is
transformers' logits, or the interpreter of the model's graph in float64 (tests/graph).
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.cpu.kernels import abi
from npurt.cpu.state.convolved import ROLLBACK_TOKENS
from npurt.device.segment import Limits
from npurt.graph import ops
from npurt.graph.interpreter import Interpreter
from npurt.graph.meaning import MEANING
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.llm.arch.decoder import Chunk, Decoder, residual
from npurt.llm.arch.weights import FileWeights
from npurt.llm.state.hidden_states import HiddenStates
from npurt.runtime.execute.executor import Executor
from npurt.runtime.execute.placement import Stacked
from tests.graph.models import logits, read
from tests.llm import tiny, variants
from tests.llm.conftest import GREEDY
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE, noise

MODELS = (
    "exaone4", "gemma2", "gemma3", "glm4", "gpt-oss", "granite", "lfm2", "mistral3", "olmo2",
    "olmo3", "phi3", "phi3-longrope", "smollm3",
)  # fmt: skip
DEVICES = ("hexagon:sim", "rknpu:sim")

# As in test_logits: these prefills have T x D / 100 = 25 independent terms, so the mean of their
# squares has a standard deviation of sqrt(2 / 25) = 0.28.  The bound of test_logits is 1.25; here
# it is 1 + 3 * 0.28.
NOISE = 1.85


def path(model):
    return tiny.path(model, "bf16")


def open_tiny(file, device="cpu", **options):
    options = {"n_ctx": 64, "kv_type": "f32", "verify": "always", "progress": False} | options
    return npurt.Llama(file, device, **options)


# --- On the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_transformers(model):
    with open_tiny(path(model)) as llm:
        y = llm.eval(tiny.ids(model))

    assert nmse(y, tiny.array(model, "hf_f32_prefill")) < FLOAT_NMSE


@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_set_and_number_of_threads_gives_the_same_logits(model, monkeypatch):
    made = []
    for name in abi.isas():
        monkeypatch.setenv("NPURT_CPU_ISA", name)
        for threads in (1, 3):
            with open_tiny(path(model), n_threads=threads) as llm:
                made.append(llm.eval(tiny.ids(model)))

    for y in made[1:]:
        np.testing.assert_array_equal(y, made[0])


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    """Yield a model with batches of 16 tokens, its ids, and their logits from a single batch."""
    with open_tiny(path(request.param)) as whole, open_tiny(path(request.param), n_batch=16) as llm:
        ids = tiny.ids(request.param)
        yield llm, ids, whole.eval(ids)


def test_token_by_token_is_prefill_bit_for_bit(pair):
    llm, ids, whole = pair
    llm.reset()

    y = np.concatenate([llm.eval([token]) for token in ids])

    np.testing.assert_array_equal(y, whole)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_any_split_gives_the_same_logits(pair, sizes):
    llm, ids, whole = pair
    llm.reset()
    at = 0
    for size in [*sizes, len(ids)]:
        part = ids[at : at + size]
        np.testing.assert_array_equal(llm.eval(part), whole[at : at + size])
        at += len(part)


@given(steps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=4))
def test_tokens_taken_back_leave_nothing(pair, steps):
    llm, ids, whole = pair
    llm.reset()
    for forward, back in steps:
        llm.eval([(token + 7) % 600 for token in ids[: min(forward, 64 - llm.n_tokens)]])
        llm.rollback(min(back, llm.n_tokens))
    llm.rewind(0)
    llm.eval(ids[:20])
    llm.eval([5, 6, 7])
    llm.rollback(3)

    np.testing.assert_array_equal(llm.eval(ids[20:]), whole[20:])


def test_a_saved_state_goes_on_where_it_was(pair, tmp_path):
    llm, ids, whole = pair
    llm.reset()
    llm.eval(ids[:23])
    llm.save_state(tmp_path / "state")
    snapshot = llm.snapshot()
    llm.reset()
    llm.load_state(tmp_path / "state")
    np.testing.assert_array_equal(llm.eval(ids[23:]), whole[23:])

    llm.restore(snapshot)
    llm.eval(ids[23:30])
    llm.rollback(9)

    np.testing.assert_array_equal(llm.eval(ids[21:]), whole[21:])


def test_lookup_writes_what_plain_decoding_writes(pair):
    llm, ids, _ = pair
    prompt = ids[:6] * 3
    options = {"max_tokens": 40, **GREEDY}
    llm.reset()
    text = llm.generate(prompt, **options)
    history = llm.history

    with open_tiny(llm.path, draft="lookup", verify="off") as drafting:
        assert drafting.generate(prompt, **options) == text
        assert drafting.history == history


def test_more_than_is_kept_of_a_convolution_is_evaluated_again():
    ids = (tiny.ids("lfm2") * 4)[: ROLLBACK_TOKENS + 50]
    with open_tiny(path("lfm2"), n_ctx=128) as llm:
        whole = llm.eval(ids)
        llm.rollback(ROLLBACK_TOKENS + 20)
        np.testing.assert_array_equal(llm.eval(ids[30:]), whole[30:])
        llm.rollback(ROLLBACK_TOKENS)

        np.testing.assert_array_equal(llm.eval(ids[-ROLLBACK_TOKENS:]), whole[-ROLLBACK_TOKENS:])


@pytest.mark.parametrize("model", MODELS)
def test_a_full_context_forgets_tokens_and_turns_the_keys_that_stay(model):
    """After a shift, the cache of the first layer equals that of a new model with the same tokens.

    Keys of the first layer depend on their tokens only; a hybrid is evaluated again.
    Keys are below 40 and are rotated twice, so the bound is 40 * gamma(6).
    """
    ids = tiny.ids(model, 33)
    with (
        open_tiny(path(model), n_ctx=32, context_shift=True) as llm,
        open_tiny(path(model), n_ctx=32) as new,
    ):
        llm.eval(ids[:32])
        llm.eval(ids[32:])
        new.eval(llm.history)
        first = next(op for op in llm.model.setup.graph.graph.ops if isinstance(op, ops.Attention))
        keys, values, new_keys, new_values = (
            model.state._executor.read(0)[state.name]
            for model in (llm, new)
            for state in (first.keys, first.values)
        )

    assert len(keys) < 32
    assert abs(keys).max() < 40
    np.testing.assert_allclose(keys, new_keys, rtol=0, atol=40 * 6 * 2**-24)
    np.testing.assert_array_equal(values, new_values)


@pytest.mark.parametrize("model", ["olmo2", "gemma3", "granite", "lfm2"])
def test_the_stream_that_enters_a_layer_can_be_captured(model):
    """Captured rows equal the interpreter's up to ten float32 roundings of sums below 64."""
    ids, layers = tiny.ids(model, 10), (0, 2)
    with open_tiny(path(model)) as llm:
        graph, (_, load) = llm.model.setup.description.graph(64, layers), read(path(model))
        exact = Interpreter(graph.graph, load).run(
            {"tokens": np.array(ids)}, Rows.of(10), States(graph.graph, np.float64)
        )
        hidden_states, made = HiddenStates(layers, 10, llm.config.width), []
        hidden_states.reader = lambda values, position: made.append(values.copy())
        executor = Executor(
            graph.graph, llm.model._offload, llm.model.devices.other, FileWeights(llm.file, graph),
            Limits(10, 64, kv_dtype="f32"), llm.model.ledger, [residual(graph)],
        )  # fmt: skip
        decoder = Decoder(graph, executor, 10)
        hidden_states.begin(0, 10)
        out = np.empty((10, llm.config.n_vocab), np.float32)
        hidden_states.end(ids, decoder.run([Chunk(0, 0, ids, 10)], out))
        hidden_states.flush()

    captured = np.split(made[0], 2, axis=1)
    for layer, values in zip(layers, captured, strict=True):
        wanted = exact[f"hidden.{layer}"]
        assert abs(wanted).max() < 64
        np.testing.assert_allclose(values, wanted, rtol=0, atol=10 * 64 * 2.0**-24)


@pytest.mark.parametrize("model", ["granite", "gemma2", "olmo2", "gemma3"])
def test_the_head_of_a_draft_scales_and_caps_logits_as_the_model_does(model):
    ids = tiny.ids(model, 9)
    with open_tiny(path(model)) as llm:
        y = llm.eval(ids)[-1]
        llm.reset()
        stream = llm.context.read(ids)

        np.testing.assert_array_equal(llm.model.head("draft", len(y))(stream)[0], y)


# --- Quantised, on each device --------------------------------------------------------------------


def as_rounded(llm, path, ids, monkeypatch, compute=logits):
    """Return the interpreter's results for products of operands as the device rounds them."""
    weights = llm.model._offload.weights

    def multiply(x, packed):
        x = packed.device.multiplied(x.astype(np.float32), packed)
        return x @ packed.multiplied(slice(0, packed.n)).T

    def matmul(op, run):
        y = multiply(run[op.x], weights[op.weight.name].packed)
        return (y if op.bias is None else y + run[op.bias],)

    def expert_matmul(op, run):
        packed, experts = weights[op.weight.name].packed, run[op.experts]
        x = run[op.x]
        x = np.broadcast_to(x[:, None], (*experts.shape, x.shape[-1])) if x.ndim == 2 else x
        out = np.empty((*experts.shape, op.weight.shape[1].size))
        for expert in np.unique(experts):
            chosen = experts == expert
            own = (
                packed.each[expert].packed if isinstance(packed, Stacked) else packed.matrix(expert)
            )
            out[chosen] = multiply(x[chosen], own) + run[op.bias][expert]
        return (out,)

    with monkeypatch.context() as patched:
        patched.setitem(MEANING, ops.MatMul, matmul)
        patched.setitem(MEANING, ops.ExpertMatMul, expert_matmul)
        return compute(path, ids)


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize("model", MODELS)
def test_a_device_adds_the_noise_of_its_rounding_and_no_more(model, device, tmp_path, monkeypatch):
    experts = "mxfp4" if model == "gpt-oss" else None
    file = tiny.write(variants.quantised(tiny.read(path(model)), "q8_0", experts), tmp_path)
    ids = tiny.ids(model)
    exact = logits(file, ids)
    with open_tiny(file, device) as llm:
        y = llm.eval(ids)
        rounded = as_rounded(llm, file, ids, monkeypatch)
        llm.reset()
        one_by_one = np.concatenate([llm.eval([token]) for token in ids])
        used = {row.actual for row in llm.report().rows if row.macs}

    kind = "moe" if model == "gpt-oss" else model
    assert device in used
    assert noise(y, exact, kind) < NOISE * noise(rounded, exact, kind)
    np.testing.assert_array_equal(one_by_one, y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["gemma3", "lfm2", "gpt-oss"])
def test_lookup_on_an_npu_writes_what_plain_decoding_writes(model, device, tmp_path):
    file = tiny.write(variants.quantised(tiny.read(path(model))), tmp_path)
    prompt = tiny.ids(model, 6) * 3
    texts = []
    for draft in (None, "lookup"):
        with open_tiny(file, device, draft=draft, verify="off") as llm:
            texts.append(llm.generate(prompt, max_tokens=20, **GREEDY))

    assert texts[0] == texts[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["gemma3", "lfm2", "gpt-oss"])
def test_states_are_exact_beside_an_npu(model, device, tmp_path):
    """Batches of any size, rewinding, saving and loading give the same logits, bit for bit."""
    file = tiny.write(variants.quantised(tiny.read(path(model))), tmp_path)
    ids = tiny.ids(model)
    with open_tiny(file, device, n_batch=16, verify="off") as llm:
        whole = llm.eval(ids)
        llm.rollback(25)
        np.testing.assert_array_equal(llm.eval(ids[15:22]), whole[15:22])
        llm.save_state(tmp_path / "state")
        llm.reset()
        llm.load_state(tmp_path / "state")

        np.testing.assert_array_equal(llm.eval(ids[22:]), whole[22:])
