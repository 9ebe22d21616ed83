"""Tests of LoRA adapters: a model with an adapter equals the model with the adapter merged.

gguf-py writes the adapters.  numpy merges them: W + factor * B A in float64.
"""

import functools

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.compat import llama_cpp
from npurt.errors import LayoutError, ModelFormatError, NpurtError, SettingError
from npurt.graph.ops import MatMul
from npurt.llm.arch.reading import describe
from npurt.llm.file.adapter import Adapter, adapters
from npurt.llm.file.gguf import GGUF
from tests.llm import reference, tiny
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE, NOISE

EVERY = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")


def path_of(model):
    return tiny.path(model, "f32") if tiny.path(model, "f32").exists() else tiny.path(model, "bf16")


def pairs_of(path, parts=EVERY, rank=4, seed=0, layers=None):
    """Return name -> (A, B) for the matrices called *parts*, large enough to change logits."""
    rng = np.random.default_rng(seed)
    found = {}
    with GGUF(path) as file:
        for name, info in file.tensors.items():
            layer, _, part = name.removesuffix(".weight").removeprefix("blk.").partition(".")
            if part in parts and (layers is None or int(layer) in layers):
                n, k = info.shape
                a = rng.standard_normal((rank, k)) / np.sqrt(k)
                b = rng.standard_normal((n, rank)) / np.sqrt(rank)
                found[name] = a.astype(np.float32), b.astype(np.float32)
    assert found
    return found


def write(target, pairs, arch="llama", alpha=None, dtype=np.float32, **keys):
    """Write an adapter as llama.cpp's converter does."""
    writer = gguf.GGUFWriter(target, arch)
    writer.add_string("general.type", keys.get("type", "adapter"))
    writer.add_string("adapter.type", keys.get("kind", "lora"))
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, (a, b) in pairs.items():
        for end, values in (("a", a), ("b", b)):
            if values is not None:
                writer.add_tensor(f"{name}.lora_{end}", values.astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


read = functools.lru_cache(tiny.read)


def merged(path, *scaled):
    """Return *path* as a `gguf_files.File`, with (pairs, factor) of *scaled* merged into it."""
    file = read(path)
    with GGUF(path) as known:
        names = dict.fromkeys(name for pairs, _ in scaled for name in pairs)
        for name in names:
            whole = known[name].dequantize().astype(np.float64)
            for pairs, factor in scaled:
                if name in pairs:
                    a, b = (each.astype(np.float64) for each in pairs[name])
                    whole = whole + factor * (b @ a)
            file = tiny.with_tensor(file, name, whole.astype(np.float32))
    return file


def logits(path, ids, device="numpy", **options):
    options = {"n_ctx": 64, "kv_type": "f32", "progress": False} | options
    with npurt.Llama(path, device, **options) as llm:
        return llm.eval(ids)


# --- Merged weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize(
    ("model", "parts"),
    [("llama3", EVERY), ("qwen2", EVERY), ("qwen3", EVERY), ("qwen3moe", EVERY[:4]),
     ("olmo2", EVERY), ("phi3", FUSED), ("granite", EVERY),
     ("qwen35", (*EVERY, "attn_qkv", "attn_gate", "ssm_out"))],
)  # fmt: skip
def test_logits_are_those_of_merged_weights(tmp_path, model, parts, device):
    path, ids = path_of(model), tiny.ids(model, 24)
    pairs = pairs_of(path, parts)
    with GGUF(path) as file:
        arch = file.architecture
    adapter = write(tmp_path / "lora.gguf", pairs, arch, alpha=2.0)
    whole = tiny.write(merged(path, (pairs, 2.0 / 4)), tmp_path)

    y = logits(path, ids, device, lora=adapter)

    assert nmse(y, logits(whole, ids)) < FLOAT_NMSE
    assert nmse(y, logits(path, ids)) > 1e-3  # the adapter changes the logits


def test_on_quantised_weights_only_their_rounding_is_left(tmp_path, monkeypatch):
    """The adapter multiplies x before x is rounded, so the noise is at most that of merging."""
    path, ids = tiny.path("llama3", "q8_0"), tiny.ids("llama3", 60)
    pairs = pairs_of(path)
    adapter = write(tmp_path / "lora.gguf", pairs, alpha=4.0)
    metadata, weights, integer = reference.load(path)
    sums = {n: weights[n] + b.astype(np.float64) @ a for n, (a, b) in pairs.items()}
    monkeypatch.setattr(reference, "load", lambda path: (metadata, weights | sums, integer))
    exact = reference.logits(path, ids)
    rounded = reference.logits(path, ids, rounding=reference.int8)

    y = logits(path, ids, "cpu", lora=adapter)

    assert nmse(y, exact) < NOISE * nmse(rounded, exact)


@settings(max_examples=20)
@given(st.integers(1, 9), st.floats(-2, 2), st.integers(0, 3), st.none() | st.floats(0.5, 32))
def test_every_rank_scale_and_alpha(tmp_path_factory, rank, scale, seed, alpha):
    folder, path, ids = tmp_path_factory.getbasetemp(), path_of("llama3"), tiny.ids("llama3", 6)
    pairs = pairs_of(path, ("attn_q", "ffn_down"), rank, seed, layers=(1,))
    adapter = write(folder / "lora.gguf", pairs, alpha=alpha)
    factor = scale * alpha / rank if alpha else scale
    whole = tiny.write(merged(path, (pairs, factor)), folder, "merged.gguf")
    y = logits(path, ids, lora=(adapter, scale))
    assert nmse(y, logits(whole, ids)) < FLOAT_NMSE


def test_several_adapters_add_up(tmp_path):
    path, ids = path_of("llama3"), tiny.ids("llama3", 12)
    first, second = pairs_of(path), pairs_of(path, ("attn_v",), rank=3, seed=1)
    files = [
        (write(tmp_path / "a.gguf", first), 0.5),
        write(tmp_path / "b.gguf", second, alpha=3.0),
    ]
    whole = tiny.write(merged(path, (first, 0.5), (second, 1.0)), tmp_path)
    assert nmse(logits(path, ids, lora=files), logits(whole, ids)) < FLOAT_NMSE


def test_alpha_sixteen_of_rank_eight_at_half_is_one(tmp_path):
    pairs = pairs_of(path_of("llama3"), ("attn_q",), rank=8)
    adapter = Adapter.read(write(tmp_path / "a.gguf", pairs, alpha=16.0), 0.5)
    assert {part.factor for part in adapter.parts.values()} == {1.0}


def test_a_scale_of_zero_changes_no_bit(tmp_path):
    path, ids = tiny.path("llama3", "q8_0"), tiny.ids("llama3", 12)
    adapter = write(tmp_path / "a.gguf", pairs_of(path))
    y = logits(path, ids, "cpu", lora=(adapter, 0.0))
    assert (y == logits(path, ids, "cpu")).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_adapters_may_be_of_float16(tmp_path, dtype):
    pairs = pairs_of(path_of("llama3"), ("attn_q",))
    adapter = Adapter.read(write(tmp_path / "a.gguf", pairs, dtype=dtype))
    for name, (a, b) in pairs.items():
        assert (adapter.parts[name].a.dequantize() == a.astype(dtype)).all()
        assert (adapter.parts[name].b.dequantize() == b.astype(dtype)).all()


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
def test_on_an_npu_the_adapter_stays_on_the_cpu(tmp_path, device):
    path, ids = tiny.path("llama3", "q8_0"), tiny.ids("llama3", 8)
    pairs = pairs_of(path)
    adapter = write(tmp_path / "a.gguf", pairs)
    with npurt.Llama(path, device, n_ctx=64, kv_type="f32", verify="always", lora=adapter) as llm:
        y = llm.eval(ids)
        rows = llm.report().rows
    assert nmse(y, logits(path, ids, lora=adapter)) < 0.02 < nmse(y, logits(path, ids))
    own = [row for row in rows if row.op in ("lora_a", "lora_b")]
    assert len(own) == 3 * 2 * 7  # A and B of each matrix of each layer
    assert {row.actual for row in own} == {"cpu"}
    assert {row.actual for row in rows if row.op == "attn_qkv"} == {device}


def test_llama_cpp_pythons_arguments_mean_the_same(tmp_path):
    path, ids = path_of("llama3"), tiny.ids("llama3", 8)
    adapter = write(tmp_path / "a.gguf", pairs_of(path))
    llm = llama_cpp.Llama(
        str(path), n_ctx=64, lora_path=str(adapter), lora_scale=0.5, logits_all=False,
        device="numpy", verbose=False,
    )  # fmt: skip
    with npurt.Llama(path, "numpy", n_ctx=64, lora=(adapter, 0.5)) as other:
        assert (llm._llm.eval_last(ids) == other.eval_last(ids)).all()
    llm.close()


# --- The graph ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama3", "qwen3", "phi3"])
def test_products_of_one_input_stay_together(tmp_path, model):
    path = path_of(model)
    with GGUF(path) as file:
        plain = describe(file).graph(64).graph
        pairs = pairs_of(path, EVERY + FUSED)
        adapter = Adapter.read(write(tmp_path / "a.gguf", pairs, file.architecture))
        changed = describe(file, [adapter]).graph(64).graph
    assert [op.name for op in changed.ops if ".lora" not in op.name] == [o.name for o in plain.ops]
    added = [i for i, op in enumerate(changed.ops) if ".lora" in op.name]
    assert len(added) == 3 * len(pairs)
    for i, op in enumerate(changed.ops):
        group = [
            j
            for j, other in enumerate(changed.ops)
            if isinstance(op, MatMul) and isinstance(other, MatMul)
            and (other.x, other.role) == (op.x, op.role) and ".lora" not in op.name
        ]  # fmt: skip
        assert not [j for j in added if group and min(group) < j < max(group)], i


def test_a_saved_state_is_of_its_adapter(tmp_path):
    path = path_of("llama3")
    adapter = write(tmp_path / "a.gguf", pairs_of(path))
    with npurt.Llama(path, "numpy", n_ctx=64) as llm:
        llm.eval([1, 2])
        snapshot = llm.snapshot()
    with npurt.Llama(path, "numpy", n_ctx=64, lora=adapter) as llm:
        with pytest.raises(LayoutError, match="another model"):
            llm.restore(snapshot)
        llm.eval([1, 2])
        own = llm.snapshot()
        llm.restore(own)
    other = npurt.Llama(path, "numpy", n_ctx=64, lora=(adapter, 0.5))
    with other as llm, pytest.raises(LayoutError, match="another model"):
        llm.restore(own)


# --- Refusals -------------------------------------------------------------------------------------


def refused(tmp_path, says, pairs, error=ModelFormatError, model="llama3", **options):
    adapter = write(tmp_path / "bad.gguf", pairs, **options)
    with pytest.raises(error, match=says) as caught:
        npurt.Llama(path_of(model), "numpy", n_ctx=64, lora=adapter)
    assert caught.value.remedy


def test_adapters_that_do_not_fit_are_refused(tmp_path):
    pairs = pairs_of(path_of("llama3"), ("attn_q",))
    (name, (a, b)), *_ = pairs.items()
    refused(tmp_path, "adapts models of architecture qwen2", pairs, arch="qwen2")
    refused(tmp_path, "is no adapter", pairs, type="model")
    refused(tmp_path, "another kind", pairs, kind="control_vector")
    refused(tmp_path, r"attn_q.*of shape \(128, 127\)", {name: (a[:, :-1], b)})
    refused(tmp_path, r"attn_q.*of shape \(127, 128\)", {name: (a, b[:-1])})
    refused(tmp_path, r"A \[3, 128\] and B \[128, 4\]", {name: (a[:3], b)})
    refused(tmp_path, r"lacks .*lora_b", {name: (a, None)})
    refused(tmp_path, r"lacks .*lora_a", {name: (None, b)})
    refused(tmp_path, "NaN", {name: (a * np.float32(np.nan), b)})
    refused(tmp_path, r"changes blk\.9\.attn_q", {"blk.9.attn_q.weight": (a, b)})
    refused(tmp_path, "alpha is inf", pairs, alpha=float("inf"))


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight", "blk.0.attn_norm.weight"])
def test_what_is_no_product_in_a_layer_is_refused(tmp_path, name):
    a, b = np.zeros((2, 128), np.float32), np.zeros((608, 2), np.float32)
    refused(tmp_path, f"changes {name}", {name: (a, b)})


def test_experts_are_refused(tmp_path):
    a, b = np.zeros((8, 2, 128), np.float32), np.zeros((8, 96, 2), np.float32)
    pairs = {"blk.0.ffn_up_exps.weight": (a, b)}
    refused(tmp_path, "ffn_up_exps", pairs, model="qwen3moe", arch="qwen3moe")


@pytest.mark.parametrize("lora", [3, [3], ("a", "b", "c", 4), [("a.gguf", "x")]])
def test_what_names_no_adapter_is_refused(lora):
    with pytest.raises((NpurtError, TypeError)):
        adapters(lora)


def test_a_scale_that_is_no_number_is_refused(tmp_path):
    adapter = write(tmp_path / "a.gguf", pairs_of(path_of("llama3"), ("attn_q",)))
    with pytest.raises(SettingError, match="scale"):
        Adapter.read(adapter, float("nan"))


def test_a_model_is_no_adapter(tmp_path):
    with pytest.raises(ModelFormatError, match="is no adapter"):
        npurt.Llama(path_of("llama3"), "numpy", lora=path_of("llama3"))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 38), st.integers(0, 38), st.sampled_from([1e-30, 1.0, 1e30]))
def test_finite_values_never_make_logits_that_are_not(tmp_path_factory, a, b, scale):
    """Products of finite values may overflow float32; the error names the tensor."""
    path = tmp_path_factory.getbasetemp() / "large.gguf"
    pairs = pairs_of(path_of("llama3"), ("ffn_up",), layers=[0])
    large = {name: (np.sign(x) * np.float32(10.0**a), np.sign(y) * np.float32(10.0**b))
             for name, (x, y) in pairs.items()}  # fmt: skip
    write(path, large)
    refusal = None
    try:
        with npurt.Llama(
            path_of("llama3"), "cpu", n_ctx=16, n_threads=1, lora=(path, scale)
        ) as llm:
            logits = llm.eval([1, 2, 3])
    except ModelFormatError as error:
        refusal = error
    if refusal:
        assert "blk.0.ffn_up" in refusal.what
        assert "another adapter" in refusal.remedy
        assert max(a, a + b, a + b + np.log10(scale)) > 20  # ordinary values are never refused
        return
    assert np.isfinite(logits).all()
