"""Tests of encoders: bidirectional attention on every device, and calls that encoders refuse.

tests/data/make/tiny_encoders.py made the files.  The oracle is transformers' hidden states, or the
interpreter of the model's graph in float64.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.cpu.lowering.outside_steps import NumpyStep
from npurt.device.segment import Limits
from npurt.errors import ContextFull, LayoutError, ModelFormatError, SettingError, UnsupportedOp
from npurt.graph.rows import Rows
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.measure.memory import needs
from npurt.llm.text.tokenizer import Tokenizer
from tests.graph.models import hidden
from tests.llm import gguf_files as raw
from tests.llm import tiny, variants
from tests.llm.reference import nmse
from tests.llm.test_architectures import DEVICES, NOISE, as_rounded
from tests.llm.test_logits import FLOAT_NMSE

MODELS = ["bert", "nomic-bert"]
TEXTS = ["Return the mean of the values.", "An argument parser.", "x", "the median " * 20]
STRINGS = tiny.MODELS.parent / "tokenizer"


def path(model):
    return tiny.path(model, "bf16")


def open_tiny(file, device="cpu", **options):
    return npurt.Llama(file, device, **({"verify": "always", "progress": False} | options))


def states(llm, ids):
    return llm.embed([ids], normalize=False, pooling="none")[0]


@pytest.fixture(scope="module", params=MODELS)
def llm(request):
    with open_tiny(path(request.param)) as model:
        yield model


@pytest.fixture
def changed(tmp_path):
    """Return a function that writes a tiny encoder with other keys, and returns its path."""

    def write(*keys, without=(), model="bert"):
        file = tiny.read(path(model))
        for key in without:
            file = tiny.without_key(file, key)
        for name, kind, value in keys:
            file = file.with_key(name, kind, value)
        return tiny.write(file, tmp_path)

    return write


# --- Correctness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("model", MODELS)
def test_hidden_states_are_those_of_transformers(model, device):
    ids, types, wanted = (tiny.array(model, name) for name in ("ids", "types", "hf_f32_hidden"))
    with open_tiny(path(model), device) as llm:
        assert nmse(states(llm, ids.tolist()), wanted[0]) < FLOAT_NMSE
        assert nmse(llm.model.encoder.run(ids, types), wanted[1]) < FLOAT_NMSE


@pytest.mark.parametrize("model", MODELS)
def test_the_graph_in_float64_is_the_same_model(model):
    types, wanted = tiny.array(model, "types"), tiny.array(model, "hf_f32_hidden")

    assert nmse(hidden(path(model), tiny.ids(model)), wanted[0]) < FLOAT_NMSE
    assert nmse(hidden(path(model), tiny.ids(model), types), wanted[1]) < FLOAT_NMSE


@pytest.mark.parametrize("device", ["cpu", *DEVICES])
@pytest.mark.parametrize("model", MODELS)
def test_a_device_adds_the_noise_of_its_rounding_and_no_more(model, device, tmp_path, monkeypatch):
    file = tiny.write(variants.quantised(tiny.read(path(model)), "q8_0"), tmp_path)
    ids = tiny.ids(model)
    exact = hidden(file, ids)
    with open_tiny(file, device) as llm:
        y = states(llm, ids)
        rounded = as_rounded(llm, file, ids, monkeypatch, hidden)
        used = {row.actual for row in llm.report().rows if row.macs}

    assert device in used
    assert 0 < nmse(y, exact) < NOISE * nmse(rounded, exact)


@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_set_and_number_of_threads_gives_the_same_states(model, monkeypatch):
    made = []
    for name in abi.isas():
        monkeypatch.setenv("NPURT_CPU_ISA", name)
        for threads in (1, 3):
            with open_tiny(path(model), n_threads=threads) as llm:
                made.append(states(llm, tiny.ids(model)))

    for y in made[1:]:
        np.testing.assert_array_equal(y, made[0])


def test_all_tokens_see_each_other(llm):
    """The state of the first token depends on the last token, unlike in a decoder."""
    ids = tiny.ids(llm.config.architecture)
    changed = [*ids[:-1], ids[-1] - 1]

    assert nmse(states(llm, ids)[:1], states(llm, changed)[:1]) > 1e-6


@pytest.mark.parametrize(("model", "pooling"), [("bert", "cls"), ("nomic-bert", "mean")])
def test_the_file_says_how_to_pool(model, pooling):
    with open_tiny(path(model)) as llm:
        every = states(llm, llm.embedder.tokens(TEXTS[0])).astype(np.float64)
        pooled = every[0] if pooling == "cls" else every.mean(axis=0)
        y = llm.embed(TEXTS[0])

    np.testing.assert_allclose(y, pooled / np.linalg.norm(pooled), rtol=1e-6)


# --- Equal in any batch ---------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["numpy", *DEVICES])
def test_an_embedding_does_not_depend_on_the_other_texts(device):
    with open_tiny(path("bert"), device) as llm:
        alone = [llm.embed(text) for text in TEXTS]

        np.testing.assert_array_equal(llm.embed(TEXTS), alone)


@given(chosen=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6))
def test_in_any_list_it_is_the_same(llm, chosen):
    alone = {text: llm.embed(text) for text in set(chosen)}

    np.testing.assert_array_equal(llm.embed(chosen), [alone[text] for text in chosen])


@pytest.mark.parametrize(("device", "runs"), [("cpu", 2), ("hexagon:sim", 2), ("numpy", 6)])
def test_texts_share_runs_where_that_changes_no_bit(device, runs):
    """A run of 64 rows evaluates three texts of 20 tokens; numpy runs each text alone."""
    ids = [[5 + i] * 20 for i in range(6)]
    with open_tiny(path("bert"), device, n_batch=64) as llm:
        made = llm.embed(ids)
        rows = [row for row in llm.report().rows if row.op == "ffn_up"]

    assert {row.calls for row in rows} == {runs}
    assert made.shape == (6, 64)


@pytest.mark.parametrize("model", MODELS)
def test_texts_in_one_run_do_not_see_each_other(model):
    """Texts in one run, with rows in any order, give the bits of separate runs."""
    ids = np.asarray(tiny.ids(model, 30), np.int32)
    with npurt.GGUF(path(model)) as file, CpuDevice(2) as cpu:
        model_graph = describe(file).graph(64)
        graph, weights = model_graph.graph, FileWeights(file, model_graph)
        together, alone = (cpu.compile(graph, weights, Limits(30, 64, 3)) for _ in range(2))
        sequences = np.array([0] * 10 + [4, 7] * 10)
        positions = np.array([*range(10), *np.repeat(np.arange(10), 2)])

        def run(segment, index):
            given = {"tokens": ids[index], "positions": positions[index].astype(np.int32),
                     "types": np.zeros(len(index), np.int32)}  # fmt: skip
            wanted = np.ones(len(index), bool)
            rows = Rows(sequences[index], positions[index], wanted)
            made = segment.run({name: given[name] for name in given if name in names}, rows)
            for sequence in set(sequences[index].tolist()):
                segment.forget(sequence)
            return made["hidden"]

        names = {tensor.name for op in graph.ops for tensor in op.reads}
        whole = run(together, np.arange(30))
        for sequence in (0, 4, 7):
            index = np.flatnonzero(sequences == sequence)
            np.testing.assert_array_equal(run(alone, index), whole[index])


def test_on_the_cpu_kernels_run_all_ops(llm):
    llm.embed("x")

    (part,) = llm.model.executor.parts
    assert not any(isinstance(step, NumpyStep) for step in part.segment._program.steps)


def test_an_encoder_reads_query_and_document_as_two_segments(tmp_path):
    output = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    file = tiny.with_tensor(tiny.read(path("bert")), "cls.output.weight", output)
    file = tiny.with_tensor(file, "cls.output.bias", np.ones(1, np.float32))
    model = tiny.write(file, tmp_path)
    with open_tiny(model) as llm:
        first = llm.embedder.tokens("the mean")
        second = [*llm.tokenize("of values", add_bos=False), llm.tokenizer.eos]
        y = llm.rerank("the mean", ["of values", "x"])

    ids, types = first + second, [0] * len(first) + [1] * len(second)
    wanted = hidden(path("bert"), ids, np.array(types))[0] @ output[0].astype(np.float64) + 1
    # The state and the output's row have length 8; the relative error of the state is at most 3e-5
    # (FLOAT_NMSE).
    assert abs(y[0] - wanted) < 64 * 3e-5
    assert y.shape == (2,)


# --- Texts to tokens ------------------------------------------------------------------------------


def test_ids_are_those_of_berts_own_tokenizer(llm):
    texts = json.loads((STRINGS / "strings.json").read_text())
    wanted = json.loads((STRINGS / "wordpiece.json").read_text())

    assert [llm.embedder.tokens(text) for text in texts] == wanted


def test_a_text_goes_there_and_back(llm):
    ids = llm.tokenize("Return the MEAN of values, x2.")

    assert llm.detokenize(ids[1:]) == "return the mean of values , x2 ."
    assert llm.tokenizer.decode(llm.embedder.tokens("the mean"), special=False) == "the mean"


def test_markup_is_markup_only_where_it_is_wanted(llm):
    mask = llm.tokenize("[MASK]")[1:]

    assert llm.tokenizer.decode(mask) == "[MASK]"
    assert len(mask) == 1
    assert mask[0] not in llm.embedder.tokens("[MASK]")


def keys(**others):
    """Return the keys of a small cased or uncased vocabulary."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "▁A", "▁é", "▁e", "b"]
    kinds = [3, 3, 3, 3] + [1] * 5
    return {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": raw.view("i", kinds), "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.seperator_token_id": 3,
    } | {f"tokenizer.ggml.{name}": value for name, value in others.items()}  # fmt: skip


def test_old_files_name_cls_instead_of_bos():
    assert Tokenizer.from_gguf(keys()).encode("ab") == [2, 4, 8]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, [4, 4, 7, 7]),
        ({"normalizer.lowercase": False}, [4, 5, 6, 7]),
        ({"normalizer.lowercase": False, "normalizer.strip_accents": True}, [4, 5, 7, 7]),
        ({"normalizer.strip_accents": False}, [4, 4, 6, 7]),
    ],
)
def test_the_file_says_whether_case_and_accents_count(options, ids):
    assert Tokenizer.from_gguf(keys(**options)).encode("a A é e", add_bos=False) == ids


def test_a_vocabulary_without_the_markup_of_bert_is_refused():
    given = {name: value for name, value in keys().items() if not name.endswith("_id")}
    with pytest.raises(ModelFormatError, match=r"names no \[CLS\], \[SEP\] or \[UNK\]"):
        Tokenizer.from_gguf(given)


# --- Refusals and limits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate("x", max_tokens=1),
        lambda llm: llm.eval([5]),
        lambda llm: llm.eval_last([5]),
        lambda llm: llm.context.read([5]),
    ],
)
def test_it_writes_no_text(llm, call):
    with pytest.raises(UnsupportedOp, match="is an encoder, which embeds text and generates none"):
        call(llm)


def test_its_empty_context_can_be_reset_and_saved(llm, tmp_path):
    llm.reset()
    llm.restore(llm.snapshot())
    llm.save_state(tmp_path / "state")
    llm.load_state(tmp_path / "state")

    assert llm.history == ()


def test_it_drafts_nothing_and_nothing_drafts_for_it():
    with pytest.raises(UnsupportedOp, match="is an encoder"):
        open_tiny(path("bert"), draft="lookup")
    with pytest.raises(UnsupportedOp, match="is an encoder"):
        open_tiny(tiny.path("qwen3", "q8_0"), draft=path("bert"))


def test_a_text_has_to_fit_one_run():
    ids = [5] * 40
    for options in ({"n_batch": 32}, {"n_ctx": 32}):
        with open_tiny(path("nomic-bert"), **options) as llm:
            assert llm.n_ctx == 32
            with pytest.raises(ContextFull, match="40 tokens, and the context 32 positions"):
                llm.embed([ids])
            assert llm.embed([ids], truncate=True).shape == (1, 64)
    for options in ({"n_ctx": 129}, {"n_ctx": 64, "n_batch": 32}):
        with pytest.raises(SettingError, match="evaluates sequences of at most"):
            open_tiny(path("bert"), **options)


def test_a_segment_that_the_model_does_not_have_is_refused(llm):
    with pytest.raises(LayoutError):
        llm.model.encoder.run([5, 6], [0, 2])


def test_it_needs_no_memory_for_keys_and_values():
    with npurt.GGUF(path("bert")) as file:
        assert needs(file).kv_cache == 0


def test_files_that_are_no_encoders_after_all_are_refused(changed):
    for keys_, match in (
        ([("bert.attention.causal", raw.BOOL, True)], "causal is True"),
        ([("bert.attention.layer_norm_epsilon", raw.F32, 2.0)], "epsilon is 2.0"),
        ([("bert.context_length", raw.U32, 64)], "position_embd.weight has shape"),
    ):
        with pytest.raises(ModelFormatError, match=match):
            open_tiny(changed(*keys_))
    with pytest.raises(ModelFormatError, match="layer_norm_epsilon"):
        open_tiny(changed(without=["bert.attention.layer_norm_epsilon"]))


@pytest.mark.parametrize("model", MODELS)
def test_one_segment_or_none_are_also_there(model, tmp_path):
    """A file may have one row of segment types, as a vector or a matrix, or no rows."""
    file = tiny.read(path(model))
    ids = tiny.ids(model)
    with open_tiny(path(model)) as llm:
        wanted = states(llm, ids)
        first = llm.file["token_types.weight"].dequantize()[0]
        zero = states_with(file, np.zeros((2, 64), np.float32), tmp_path, ids)
    single = tiny.without_tensors(file, lambda name: name == "token_types.weight")

    np.testing.assert_array_equal(states_with(file, first, tmp_path, ids), wanted)
    np.testing.assert_array_equal(states_with(file, first[None], tmp_path, ids), wanted)
    with open_tiny(tiny.write(single, tmp_path)) as llm:
        np.testing.assert_array_equal(states(llm, ids), zero)


def states_with(file, types, folder, ids):
    """Return the states of *file* with other rows of segment types."""
    with open_tiny(tiny.write(tiny.with_tensor(file, "token_types.weight", types), folder)) as llm:
        return states(llm, ids)
