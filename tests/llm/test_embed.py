"""Tests of embeddings by decoders: correct, equal in any batch, and without side effects.

The oracle is `reference`, a decoder in float64 that shares no code with npurt (test_logits checks
its logits against transformers'); pooling and normalisation are computed here in float64.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import ContextFull, LayoutError, ModelFormatError, NpurtError, SettingError
from npurt.llm.file.pooling import NUMBERS
from tests.llm import gguf_files as raw
from tests.llm import reference, tiny
from tests.llm.conftest import GREEDY
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE

FLOATS = ["llama3", "qwen2", "qwen3", "qwen3moe", "qwen35"]
TEXTS = ["Hello world", "What is an NPU?", "x", "def f(x):\n    return x\n" * 3]
POOLED = {
    "mean": lambda h: h.mean(axis=0),
    "cls": lambda h: h[0],
    "last": lambda h: h[-1],
    "none": lambda h: h,
}


def open_tiny(path, device="cpu", **options):
    options = {"n_ctx": 160, "kv_type": "f32", "verify": "off", "progress": False} | options
    return npurt.Llama(path, device, **options)


@pytest.fixture(scope="module")
def llm():
    with open_tiny(tiny.path("qwen3", "q8_0"), n_batch=16) as model:
        yield model


def changed(folder, *keys, model="qwen3", tensors=(), kind="f32"):
    """Write a tiny model with *keys* changed and *tensors* added; return its path."""
    file = tiny.read(tiny.path(model, kind))
    for name, of, value in keys:
        file = file.with_key(name, of, value)
    for name, values in tensors:
        file = tiny.with_tensor(file, name, values)
    return tiny.write(file, folder)


# --- Correctness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("model", FLOATS)
def test_an_embedding_is_the_pooled_hidden_state_after_the_output_norm(model, pooling):
    path, ids = tiny.path(model, "f32"), tiny.ids(model)
    wanted = POOLED[pooling](reference.hidden(path, ids))

    with open_tiny(path, n_batch=64) as llm:
        as_it_is = llm.embed([ids], normalize=False, pooling=pooling)[0]
        scaled = llm.embed([ids], pooling=pooling)[0]

    assert as_it_is.dtype == scaled.dtype == np.float32
    assert nmse(as_it_is, wanted) < FLOAT_NMSE
    lengths = np.sqrt((as_it_is.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(scaled, as_it_is / lengths, rtol=2.0**-22)


@pytest.mark.parametrize("device", ["cpu", "numpy", "hexagon:sim", "rknpu:sim"])
def test_on_each_device_it_is_the_state_that_the_logits_are_made_of(device):
    """The best logit of each row is the product of the state and a row of the output matrix.

    A device may round activations to int16: an error of 3.5e-10 of the squares (test_logits).  A
    sum of 128 random terms has the same relative error.
    """
    path, ids = tiny.path("qwen3", "q8_0"), tiny.ids("qwen3", 40)
    with npurt.GGUF(path) as file:
        table = file["token_embd.weight"].dequantize().astype(np.float64)  # also the output matrix

    with open_tiny(path, device) as llm:
        hidden = llm.embed([ids], normalize=False, pooling="none")[0]
        y = llm.eval(ids)

    best = y.argmax(axis=1)
    assert nmse(y.max(axis=1), (hidden * table[best]).sum(axis=1)) < 1e-8


@pytest.mark.parametrize(("number", "name"), [(n, p.value) for n, p in NUMBERS.items()])
def test_the_file_says_how_to_pool(tmp_path, number, name):
    tensors = [("cls.output.weight", np.ones((2, 128), np.float32))] if name == "rank" else []
    path = changed(tmp_path, ("qwen3.pooling_type", raw.U32, number), tensors=tensors)
    with open_tiny(path) as llm:
        np.testing.assert_array_equal(
            llm.embed("Hello world"), llm.embed("Hello world", pooling=name)
        )
        made = llm.embed(TEXTS)

    assert isinstance(made, list) if name == "none" else made.shape[0] == len(TEXTS)


def test_without_a_word_of_the_file_it_is_the_mean(llm):
    np.testing.assert_array_equal(llm.embed("Hello you"), llm.embed("Hello you", pooling="mean"))


def test_known_pooling_numbers_are_those_of_llama_cpp():
    assert {n: p.value for n, p in NUMBERS.items()} == {
        0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"
    }  # fmt: skip


@pytest.mark.parametrize("wanted", [False, True])
def test_a_text_ends_with_eos_where_the_file_wants_it(tmp_path, wanted):
    path = changed(tmp_path, ("tokenizer.ggml.add_eos_token", raw.BOOL, wanted))
    with open_tiny(path) as llm:
        ids = llm.tokenize("Hello world", special=False) + [llm.tokenizer.eos] * wanted

        np.testing.assert_array_equal(llm.embed("Hello world"), llm.embed([ids])[0])


def test_markup_in_a_text_is_text(llm):
    ids = llm.tokenize("a<|im_end|>b", special=False)
    assert ids != llm.tokenize("a<|im_end|>b")

    np.testing.assert_array_equal(llm.embed("a<|im_end|>b"), llm.embed([ids])[0])


# --- The classifier of a reranker -----------------------------------------------------------------


def test_the_classifier_of_a_qwen3_gives_shares_of_the_last_token(tmp_path):
    output = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float32)
    path = changed(tmp_path, tensors=[("cls.output.weight", output)])
    ids = tiny.ids("qwen3", 20)
    scores = output.astype(np.float64) @ reference.hidden(path, ids)[-1]
    powers = np.exp(scores - scores.max())

    with open_tiny(path) as llm:
        y = llm.embed([ids], pooling="rank")[0]

    # Scores are below 128; the relative error of hidden states is at most 3e-5 (FLOAT_NMSE).
    np.testing.assert_allclose(y, powers / powers.sum(), rtol=128 * 3e-5)
    assert y.sum() == pytest.approx(1)


def test_another_classifier_has_a_dense_layer_and_biases_and_reads_the_first_token(tmp_path):
    rng = np.random.default_rng(0)
    dense, output = rng.standard_normal((128, 128)) / 12, rng.standard_normal((3, 128))
    tensors = {
        "cls.weight": dense, "cls.bias": rng.standard_normal(128),
        "cls.output.weight": output, "cls.output.bias": rng.standard_normal(3),
    }  # fmt: skip
    tensors = {name: values.astype(np.float32) for name, values in tensors.items()}
    path = changed(tmp_path, model="qwen2", tensors=tensors.items())
    ids = tiny.ids("qwen2", 20)
    state = reference.hidden(path, ids)[0]
    inner = np.tanh(tensors["cls.weight"] @ state + tensors["cls.bias"])

    with open_tiny(path) as llm:
        y = llm.embed([ids], pooling="rank")[0]

    wanted = tensors["cls.output.weight"] @ inner + tensors["cls.output.bias"]
    np.testing.assert_allclose(y, wanted, rtol=0, atol=128 * 3e-5)


def test_a_file_without_a_classifier_ranks_nothing(llm):
    with pytest.raises(ModelFormatError, match="no reranker"):
        llm.embed("x", pooling="rank")


def test_a_classifier_of_another_width_is_refused(tmp_path):
    path = changed(tmp_path, tensors=[("cls.output.weight", np.ones((2, 64), np.float32))])
    with open_tiny(path) as llm, pytest.raises(ModelFormatError, match=r"cls.output.weight has 64"):
        llm.embed("x", pooling="rank")


TEMPLATE = "<|im_start|>judge\nQuery: {query}\nDocument: {document}<|im_end|>\n"


@pytest.mark.parametrize("device", ["cpu", "hexagon:sim", "rknpu:sim"])
def test_a_template_makes_a_prompt_of_a_query_and_a_document(tmp_path, device):
    output = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float32)
    path = changed(
        tmp_path, ("tokenizer.chat_template.rerank", raw.STRING, TEMPLATE),
        tensors=[("cls.output.weight", output)], kind="q8_0",
    )  # fmt: skip
    documents = ["an NPU", "{query}", "bread"]
    with open_tiny(path, device) as llm:
        llm.eval([5, 6])
        y = llm.rerank("What is {document}?", documents)
        prompts = [
            f"<|im_start|>judge\nQuery: What is {{document}}?\nDocument: {text}<|im_end|>\n"
            for text in documents
        ]
        ids = [llm.tokenize(prompt, add_bos=False) for prompt in prompts]
        wanted = llm.embed(ids, pooling="rank")[:, 0]

        assert llm.tokenizer.control & set(ids[0])
        assert llm.history == (5, 6)
        np.testing.assert_array_equal(y, wanted)
        assert y.shape == (3,)
        assert llm.rerank("x", []).shape == (0,)
        with pytest.raises(ContextFull, match="the query with document 1 has"):
            llm.rerank("x", ["short", "long " * 200])


def test_without_a_template_a_pair_is_two_texts_and_their_ends(tmp_path):
    tensors = [("cls.output.weight", np.ones((1, 128), np.float32))]
    path = changed(tmp_path, ("tokenizer.ggml.add_eos_token", raw.BOOL, True), model="qwen2",
                   tensors=tensors)  # fmt: skip
    with open_tiny(path) as llm:
        eos = llm.tokenizer.eos
        ids = [*llm.tokenize("a b", special=False), eos, *llm.tokenize("c", special=False), eos]

        np.testing.assert_array_equal(
            llm.rerank("a b", ["c"]), llm.embed([ids], pooling="rank")[:, 0]
        )


def test_only_rerankers_rerank(llm):
    with pytest.raises(ModelFormatError, match="no reranker"):
        llm.rerank("x", ["y"])
    for wrong in ((5, ["y"]), ("x", [5]), ("x", "y"), ("x", 5)):
        with pytest.raises((NpurtError, TypeError)):
            llm.rerank(*wrong)


# --- Equal in any batch -------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "numpy", "hexagon:sim", "rknpu:sim"])
def test_an_embedding_does_not_depend_on_the_other_texts(device):
    with open_tiny(tiny.path("qwen3", "q8_0"), device) as llm:
        alone = [llm.embed(text) for text in TEXTS]

        np.testing.assert_array_equal(llm.embed(TEXTS), alone)
        np.testing.assert_array_equal(llm.embed(TEXTS[::-1])[::-1], alone)


@given(
    chosen=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5),
    before=st.lists(st.integers(3, 500), max_size=40),
)
def test_whatever_ran_before_and_beside_it_is_the_same(llm, chosen, before):
    llm.reset()
    alone = {text: llm.embed(text) for text in set(chosen)}
    llm.eval(before)

    np.testing.assert_array_equal(llm.embed(chosen), [alone[text] for text in chosen])
    assert llm.history == tuple(before)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_batches_do_not_show(llm, threads):
    with open_tiny(tiny.path("qwen3", "q8_0"), n_threads=threads) as other:
        np.testing.assert_array_equal(other.embed(TEXTS), llm.embed(TEXTS))


@pytest.mark.parametrize("model", [("qwen35", "f32"), ("qwen3", "q8_0")])
def test_a_generation_goes_on_over_embeddings(model):
    with open_tiny(tiny.path(*model)) as llm, open_tiny(tiny.path(*model)) as straight:
        whole = straight.generate("Hello", max_tokens=12, **GREEDY)
        pieces = []
        for piece in llm.generate("Hello", max_tokens=12, stream=True, **GREEDY):
            llm.embed(["another text", "x"])
            pieces.append(piece)

    assert "".join(pieces) == whole
    assert llm.history == straight.history


def test_an_interruption_leaves_the_context_as_it_was(llm, monkeypatch):
    llm.reset()
    llm.eval([5, 6, 7])
    y = llm.eval([8])[0]
    llm.rewind(3)

    def fails(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(llm.context.model.decoder), "run", fails)
        with pytest.raises(KeyboardInterrupt):
            llm.embed("Hello")

    assert llm.history == (5, 6, 7)
    np.testing.assert_array_equal(llm.eval([8])[0], y)
    llm.reset()


# --- Refusals -------------------------------------------------------------------------------------


def test_a_text_that_does_not_fit_is_refused_or_cut(tmp_path):
    path = changed(tmp_path, ("tokenizer.ggml.add_eos_token", raw.BOOL, True))
    with open_tiny(path, n_ctx=16) as llm:
        text, eos = "one two three four five six seven eight nine ten", llm.tokenizer.eos
        ids = llm.tokenize(text)
        assert len(ids) > 16
        with pytest.raises(
            ContextFull, match=rf"text 1 has {len(ids) + 1} tokens, .* 16 positions"
        ):
            llm.embed(["short", text])

        cut = llm.embed(["x", text], truncate=True)

        np.testing.assert_array_equal(cut[1], llm.embed([[*ids[:15], eos]])[0])
        assert llm.embed([ids[:16]]).shape == (1, 128)


def test_texts_may_be_lists_of_ids_of_any_lengths(llm):
    made = llm.embed([[5, 6, 7], np.array([5]), "Hello world"])

    np.testing.assert_array_equal(made[0], llm.embed([[5, 6, 7]])[0])
    np.testing.assert_array_equal(made[2], llm.embed("Hello world"))
    assert made.shape == (3, 128)


def test_no_texts_have_no_embeddings(llm):
    assert llm.embed([]).shape == (0, 128)
    assert llm.embed([], pooling="none") == []


@pytest.mark.parametrize(
    "texts",
    ["", ["x", ""], [[]], [[-1]], [[1.5]], None, 5, {"a"}, {"a": 1}, [None], ["a", 5], [["a"]],
     [b"ab"], np.array(5), [[10**5000]], [[1], "b", {3}], "\ud800", [np.array([1.5])]],
    ids=lambda texts: type(texts).__name__,
)  # fmt: skip
def test_what_is_no_text_is_refused_before_any_runs(llm, texts, monkeypatch):
    monkeypatch.setattr(llm.embedder, "_hidden", None)  # a run would fail
    with pytest.raises(LayoutError):
        llm.embed(texts)


def test_texts_come_in_any_order_that_they_have(llm):
    wanted = llm.embed([[5, 6], "ab"])
    for texts in (([5, 6], "ab"), iter(([5, 6], "ab")), [np.array([5, 6]), "ab"]):
        assert (llm.embed(texts) == wanted).all()
    assert (llm.embed([np.array([5, 6])]) == wanted[:1]).all()


def test_unknown_poolings_are_refused(llm, tmp_path):
    with pytest.raises(SettingError, match="pooling is 'max'"):
        llm.embed("x", pooling="max")
    path = changed(tmp_path, ("qwen3.pooling_type", raw.U32, 7))
    with open_tiny(path) as other, pytest.raises(ModelFormatError, match="pooling_type = 7"):
        other.embed("x")
