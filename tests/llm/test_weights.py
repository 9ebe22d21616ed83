"""Tests of weights: a file needs exactly the tensors and shapes of its architecture."""

import time
from pathlib import Path

import numpy as np
import pytest

import npurt
from npurt.cpu.lowering.constants import products
from npurt.errors import ModelFormatError, NumericsError
from npurt.graph.tensor import Kind
from npurt.llm.arch import weights
from npurt.llm.arch.architecture import RopePairs
from npurt.llm.arch.families import ARCHITECTURES, find
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF
from tests.llm import reference, tiny


@pytest.fixture(scope="module")
def llama():
    return tiny.read(tiny.path("llama3", "f32"))


@pytest.fixture(scope="module")
def qwen():
    return tiny.read(tiny.path("qwen2", "q8_0"))


def opening(file, folder, **options):
    return npurt.Llama(tiny.write(file, folder), n_ctx=32, **options)


def refused(file, folder, match, error=ModelFormatError, **options):
    before = threads()
    with pytest.raises(error, match=match) as caught:
        opening(file, folder, **options)
    assert caught.value.remedy
    for _ in range(1000):  # the kernel lists a joined thread for a moment
        if threads() == before:
            return
        time.sleep(0.01)
    raise AssertionError("threads were left behind")


def threads():
    return {path.name for path in Path("/proc/self/task").iterdir()}


REQUIRED = [
    "token_embd.weight",
    "output_norm.weight",
    "blk.0.attn_norm.weight",
    "blk.2.attn_q.weight",
    "blk.1.attn_k.weight",
    "blk.0.attn_v.weight",
    "blk.0.attn_output.weight",
    "blk.0.ffn_norm.weight",
    "blk.0.ffn_gate.weight",
    "blk.0.ffn_up.weight",
    "blk.2.ffn_down.weight",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_tensor_is_named(llama, tmp_path, name):
    refused(tiny.without_tensors(llama, lambda other: other == name), tmp_path, f"lacks {name}")


def test_many_missing_tensors_are_counted(llama, tmp_path):
    file = tiny.without_tensors(llama, lambda name: name.startswith("blk.1."))

    refused(file, tmp_path, "and 6 more")


@pytest.mark.parametrize(
    "name",
    [
        "blk.3.attn_q.weight",
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.attn_q.scale",
        "something",
    ],
)
def test_a_tensor_that_would_not_be_used_is_named(llama, tmp_path, name):
    file = tiny.with_tensor(llama, name, np.zeros((4, 32)))

    refused(file, tmp_path, f"has {name}, which llama does not use")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("token_embd.weight", (608, 64)),
        ("blk.0.attn_q.weight", (64, 128)),
        ("blk.0.attn_k.weight", (128, 64)),
        ("blk.0.ffn_down.weight", (288, 128)),
        ("blk.0.attn_norm.weight", (64,)),
        ("blk.0.attn_norm.weight", (1, 128)),
        ("blk.0.attn_q.weight", (128 * 128,)),
        ("output.weight", (600, 128)),
        ("output.bias", (600,)),
        ("blk.0.attn_q.bias", (64,)),
        ("rope_freqs.weight", (32,)),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_both(llama, tmp_path, name, shape):
    file = tiny.with_tensor(llama, name, np.zeros(shape))

    refused(file, tmp_path, rf"({name} has shape|token_embd|lacks).*")


def test_a_vector_in_blocks_is_refused(llama, tmp_path):
    file = tiny.without_tensors(llama, lambda name: name == "output_norm.weight")
    q8_0 = tiny.raw.Tensor("output_norm.weight", (128,), 8)
    contents = [*tiny.contents(file), bytes(4 * 34)]

    refused(
        tiny.with_data(file, [*file.tensors, q8_0], contents), tmp_path, r"output_norm.* is q8_0"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_vector_that_holds_no_numbers_is_refused(llama, tmp_path, bad):
    for name, size in (("blk.0.attn_norm.weight", 128), ("blk.0.attn_q.bias", 128)):
        file = tiny.with_tensor(llama, name, np.full(size, bad))
        refused(file, tmp_path, f"{name} holds NaN or infinity")


def test_a_matrix_that_holds_no_numbers_is_refused_when_products_are_verified(llama, tmp_path):
    values = np.zeros((128, 128))
    values[3, 4] = np.nan
    file = tiny.with_tensor(llama, "blk.1.attn_q.weight", values)

    refused(file, tmp_path, r"blk\.1\.attn_q holds NaN", NumericsError, verify="sample")
    with opening(file, tmp_path, verify="off") as llm:
        assert np.isnan(llm.eval([1, 2])).all()


def test_an_architecture_that_npurt_does_not_run_is_named(llama, tmp_path):
    file = llama.with_key("general.architecture", 8, "gemma3")

    refused(file, tmp_path, "gemma3")
    with pytest.raises(ModelFormatError, match="'gpt2'") as caught:
        find("gpt2")
    assert all(name in caught.value.remedy for name in ARCHITECTURES)


def test_architectures_rotate_as_their_converters_say():
    adjacent = {name for name in ARCHITECTURES if find(name).rope is RopePairs.ADJACENT}
    assert adjacent == {"glm4", "granite", "llama", "mistral3", "smollm3"}


def test_a_vocabulary_of_another_size_than_the_embedding_is_refused(llama, tmp_path):
    file = tiny.with_tensor(llama, "token_embd.weight", np.zeros((600, 128)))
    file = tiny.with_tensor(file, "output.weight", np.zeros((600, 128)))

    refused(file, tmp_path, "608 tokens, but the embedding has 600 rows")


def test_metadata_for_more_layers_than_there_are_is_refused(llama, tmp_path):
    refused(llama.with_key("llama.block_count", 4, 4), tmp_path, r"lacks blk\.3")
    refused(llama.with_key("llama.block_count", 4, 2), tmp_path, r"has blk\.2")
    refused(llama.with_key("llama.block_count", 4, 16_000_000), tmp_path, "block_count")


# --- What may be there ----------------------------------------------------------------------------


def logits(file, folder, count=40):
    path = tiny.write(file, folder)
    ids = tiny.ids("llama3", count)
    with npurt.Llama(path, kv_type="f32", verify="off") as llm:
        return llm.eval(ids), reference.logits(path, ids)


def test_biases_of_every_matrix_are_added(llama, tmp_path):
    rng = np.random.default_rng(0)
    file = llama
    for name in ("q", "k", "v", "output"):
        size = 64 if name in "kv" else 128
        file = tiny.with_tensor(file, f"blk.1.attn_{name}.bias", rng.standard_normal(size))
    for name, size in (("gate", 288), ("up", 288), ("down", 128)):
        file = tiny.with_tensor(file, f"blk.2.ffn_{name}.bias", rng.standard_normal(size))
    file = tiny.with_tensor(file, "output.bias", rng.standard_normal(608))

    y, wanted = logits(file, tmp_path)

    assert reference.nmse(y, wanted) < 1e-9


def test_a_tied_model_multiplies_by_its_embedding(llama, tmp_path):
    y, wanted = logits(tiny.without_tensors(llama, lambda name: name == "output.weight"), tmp_path)

    assert reference.nmse(y, wanted) < 1e-9


def test_matrices_may_be_of_any_mixture_of_formats(llama, tmp_path):
    """Values of f16 and bf16 are exact in float32, so the bound for float32 holds."""
    file, kinds = llama, {"blk.0.attn_q.weight": 1, "blk.0.attn_v.weight": 30,
                          "blk.1.ffn_down.weight": 1, "token_embd.weight": 30}  # fmt: skip
    contents = tiny.contents(file)
    for i, tensor in enumerate(file.tensors):
        values = np.frombuffer(contents[i], "<f4")
        if kinds.get(tensor.name) == 1:
            contents[i] = values.astype("<f2").tobytes()
        elif kinds.get(tensor.name) == 30:
            contents[i] = (values.view("<u4") >> 16).astype("<u2").tobytes()
    changed = [tiny.raw.Tensor(t.name, t.dims, kinds.get(t.name, t.kind)) for t in file.tensors]

    y, wanted = logits(tiny.with_data(file, changed, contents), tmp_path)

    assert reference.nmse(y, wanted) < 1e-9


def test_a_graph_names_every_tensor_of_the_file(qwen):
    with GGUF(tiny.path("qwen2", "q8_0")) as file:
        model = describe(file).graph(160)
        held = weights.FileWeights(file, model)
        names = {held.source(tensor.name).tensor for tensor in model.graph.tensors(Kind.WEIGHT)}
        assert set(file) == names
        vectors = names - {held.source(name).tensor for name in products(model.graph)}
        assert held.values("blk.0.attn_q.bias").dtype == np.float32
        assert held.values("output_norm.weight").shape == (128,)

    assert len(vectors) == sum(len(t.dims) == 1 for t in qwen.tensors)
