"""Tests of architectures: models with other parts, and the same model stored in another form.

For the same model in another form, the oracle is transformers' logits; for other models, it is
`reference`, each part of which `test_logits` checks against oracles.
"""

import numpy as np
import pytest

import npurt
from npurt.errors import ModelFormatError, NotOffloaded
from npurt.llm.arch.families import ARCHITECTURES, find
from tests.llm import gguf_files as raw
from tests.llm import reference, tiny, variants
from tests.llm.reference import nmse
from tests.llm.test_logits import FLOAT_NMSE, noise


def logits(file, folder, count=None, model="qwen3", **options):
    """Return the logits of the first *count* ids, and the path of the file."""
    path = tiny.write(file, folder)
    options = {"n_ctx": 160, "kv_type": "f32", "verify": "always"} | options
    with npurt.Llama(path, **options) as llm:
        return llm.eval(tiny.ids(model, count)), path


def is_right(file, folder, model="qwen3", count=60):
    """Raise unless prefill gives the reference's logits and single tokens give equal bits."""
    y, path = logits(file, folder, count, model)
    with npurt.Llama(path, n_ctx=160, kv_type="f32", verify="off") as llm:
        rows = [
            llm.eval(tiny.ids(model, 20)),
            *(llm.eval([i]) for i in tiny.ids(model, count)[20:]),
        ]

    assert nmse(y, reference.logits(path, tiny.ids(model, count))) < FLOAT_NMSE
    np.testing.assert_array_equal(np.concatenate(rows), y)


@pytest.fixture(scope="module")
def qwen3():
    return tiny.read(tiny.path("qwen3", "f32"))


@pytest.fixture(scope="module")
def qwen35():
    return tiny.read(tiny.path("qwen35", "f32"))


# --- The same model in another form ---------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True])
def test_heads_grouped_by_key_head_give_transformers_logits(qwen35, tmp_path, legacy):
    """For qwen3next, the converter does not reorder the heads: they are grouped by key head."""
    y, _ = logits(variants.grouped(qwen35, legacy=legacy), tmp_path, model="qwen35")

    assert nmse(y, tiny.array("qwen35", "hf_f32_prefill")) < FLOAT_NMSE


def test_heads_in_the_wrong_order_would_show(qwen35, tmp_path):
    y, _ = logits(variants.renamed(qwen35, "qwen3next"), tmp_path, model="qwen35")

    assert nmse(y, tiny.array("qwen35", "hf_f32_prefill")) > 1e-3


@pytest.mark.parametrize(
    ("model", "kind", "whole", "parts"),
    [
        ("qwen3", "f32", "attn_qkv", ("attn_q", "attn_k", "attn_v")),
        ("qwen35", "f32", "attn_qkv", ("attn_q", "attn_k", "attn_v")),
        ("qwen3moe", "f32", "ffn_gate_up_exps", ("ffn_gate_exps", "ffn_up_exps")),
    ],
)
def test_matrices_may_lie_one_below_the_other(tmp_path, model, kind, whole, parts):
    file = tiny.read(tiny.path(model, kind))
    plain, _ = logits(file, tmp_path, 40)

    y, _ = logits(variants.joined(file, whole, *parts), tmp_path, 40)

    np.testing.assert_array_equal(y, plain)


def test_a_mixture_of_equal_experts_is_that_expert(qwen3, tmp_path):
    """The experts' weights add up to 1, so the logits equal transformers' for the dense model."""
    arrays = variants.values(qwen3)
    file = variants.with_experts(qwen3, "qwen3moe", 5, 3, n_ff=352)
    mixed = variants.values(file)
    for name in mixed:
        if name.endswith("_exps.weight"):
            mixed[name] = np.stack([arrays[name.replace("_exps", "")]] * 5)

    y, _ = logits(variants.with_values(file, mixed), tmp_path)

    assert nmse(y, tiny.array("qwen3", "hf_f32_prefill")) < FLOAT_NMSE


def test_blocks_that_look_ahead_are_left_alone(qwen35, tmp_path):
    plain, _ = logits(qwen35, tmp_path, 40, "qwen35")
    arrays = variants.values(qwen35)
    ahead = {n.replace("blk.3", "blk.4"): a for n, a in arrays.items() if n.startswith("blk.3")}
    ahead["blk.4.nextn.eh_proj.weight"] = np.zeros((128, 256))
    file = variants.with_values(qwen35, arrays | ahead).with_key("qwen35.block_count", raw.U32, 5)

    y, _ = logits(file.with_key("qwen35.nextn_predict_layers", raw.U32, 1), tmp_path, 40, "qwen35")

    np.testing.assert_array_equal(y, plain)
    one = file.with_key("qwen35.block_count", raw.U32, 1)
    one = one.with_key("qwen35.nextn_predict_layers", raw.U32, 1)
    with pytest.raises(ModelFormatError, match="of 1 blocks predict"):
        logits(one, tmp_path)


def test_layers_may_be_counted_off_instead_of_listed(qwen35, tmp_path):
    plain, _ = logits(qwen35, tmp_path, 40, "qwen35")
    file = tiny.without_key(qwen35, "qwen35.attention.recurrent_layers")

    y, _ = logits(file, tmp_path, 40, "qwen35")
    silent = tiny.without_key(file, "qwen35.full_attention_interval")
    without, _ = logits(silent, tmp_path, 40, "qwen35")

    np.testing.assert_array_equal(y, plain)
    np.testing.assert_array_equal(without, plain)
    with pytest.raises(ModelFormatError, match=r"lacks blk\.1\.attn_q_norm"):
        logits(file.with_key("qwen35.full_attention_interval", raw.U32, 2), tmp_path)


# --- Other models ---------------------------------------------------------------------------------

MIXTURES = {
    "qwen2moe": ("qwen2", {"shared": 80}),
    "qwen3moe": ("qwen3", {}),
    "qwen35moe": ("qwen35", {"shared": 64}),
    "llama": ("llama3", {}),
}


@pytest.mark.parametrize("architecture", MIXTURES)
@pytest.mark.parametrize(("count", "used"), [(1, 1), (4, 4), (5, 2), (33, 7)])
def test_mixtures_of_experts_are_right(tmp_path, architecture, count, used):
    model, options = MIXTURES[architecture]
    file = tiny.read(tiny.path(model, "f32"))

    is_right(variants.with_experts(file, architecture, count, used, **options), tmp_path, model)


def test_a_mixture_with_grouped_heads_is_right(qwen35, tmp_path):
    file = variants.grouped(qwen35)

    is_right(variants.with_experts(file, "qwen3next", 6, 2, shared=32), tmp_path, "qwen35")


def test_some_layers_may_have_no_experts(qwen3, tmp_path):
    is_right(variants.with_experts(qwen3, "qwen3moe", 6, 2, layers=[1]), tmp_path)


@pytest.mark.parametrize("norm", [False, True])
def test_a_file_may_say_what_becomes_of_shares(qwen3, tmp_path, norm):
    file = variants.with_experts(qwen3, "qwen3moe", 6, 3)
    file = file.with_key("qwen3moe.expert_weights_norm", raw.BOOL, norm)

    is_right(file.with_key("qwen3moe.expert_weights_scale", raw.F32, 2.5), tmp_path)


def test_quantised_experts_add_the_noise_of_int8_activations_and_no_more(tmp_path):
    """All experts of the oracles' qwen3moe are used, so each has more rows than a gemv computes."""
    file = tiny.read(tiny.path("qwen3moe", "q8_0")).with_key(
        "qwen3moe.expert_used_count", raw.U32, 8
    )
    y, path = logits(file, tmp_path, 100, "qwen3moe")
    exact = reference.logits(path, tiny.ids("qwen3moe", 100))
    rounded = reference.logits(path, tiny.ids("qwen3moe", 100), rounding=reference.int8)

    assert noise(y, exact, "qwen3moe") < 1.25 * noise(rounded, exact, "qwen3moe")


def test_attention_without_gates_is_right(qwen35, tmp_path):
    arrays = variants.values(qwen35)
    gated = arrays["blk.3.attn_q.weight"].reshape(4, 2, 64, 128)
    arrays["blk.3.attn_q.weight"] = gated[:, 0].reshape(256, 128)

    is_right(variants.with_values(qwen35, arrays), tmp_path, "qwen35")


def test_biases_are_added_to_queries_and_gates_alike(qwen35, tmp_path):
    arrays, rng = variants.values(qwen35), np.random.default_rng(0)
    arrays["blk.3.attn_q.bias"] = rng.standard_normal(512)
    arrays["blk.3.attn_output.bias"] = rng.standard_normal(128)

    is_right(variants.with_values(qwen35, arrays), tmp_path, "qwen35")


def test_only_a_part_of_a_head_may_rotate(qwen3, tmp_path):
    is_right(qwen3.with_key("qwen3.rope.dimension_count", raw.U32, 24), tmp_path)


@pytest.mark.parametrize("kernel_size", [1, 2, 8])
def test_a_convolution_may_see_more_or_fewer_tokens(qwen35, tmp_path, kernel_size):
    arrays, rng = variants.values(qwen35), np.random.default_rng(0)
    for i in range(3):
        arrays[f"blk.{i}.ssm_conv1d.weight"] = rng.standard_normal((320, kernel_size)) / kernel_size
    file = variants.with_values(qwen35, arrays)

    is_right(file.with_key("qwen35.ssm.conv_kernel", raw.U32, kernel_size), tmp_path, "qwen35", 30)


def test_only_the_experts_of_a_token_are_read():
    """The ledger counts the matrices that were read: 3 of 8 for one token, all for many."""
    path = tiny.path("qwen3moe", "f32")
    whole = 8 * 96 * 128 * 4
    with npurt.Llama(path, verify="off") as llm:
        llm.eval([5])
        one = {row.tensor: row.nbytes for row in llm.report().rows if "_exps" in row.tensor}
        llm.reset()
        llm.eval(tiny.ids("qwen3moe", 100))
        more = {row.tensor: row.nbytes for row in llm.report().rows if "_exps" in row.tensor}

    for name, nbytes in one.items():
        stacks = 1 + name.count(",")
        assert nbytes == stacks * whole * 3 // 8
        assert more[name] == nbytes + stacks * whole


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "key", "kind", "value", "match"),
    [
        ("qwen3moe", "expert_gating_func", raw.U32, 2, "routes by softmax"),
        ("qwen3moe", "expert_group_count", raw.U32, 4, "by groups"),
        ("qwen3moe", "expert_used_count", raw.U32, 9, "uses 9 experts"),
        ("qwen3moe", "expert_count", raw.U32, 7, r"has shape \(8, 128\)"),
        ("qwen3", "attention.causal", raw.BOOL, 0, "causal"),
        ("qwen3", "attention.sliding_window", raw.U32, 100, "at most 100"),
        ("qwen2", "expert_count", raw.U32, 4, "expert_used_count"),
        ("qwen35", "ssm.inner_size", raw.U32, 96, "the same width"),
        ("qwen35", "ssm.group_count", raw.U32, 4, "no multiple of its 4 key heads"),
        ("qwen35", "ssm.conv_kernel", raw.U32, 9, "not a sensible count"),
        ("qwen35", "ssm.state_size", raw.U32, 24, "the same width"),
        ("qwen35", "rope.dimension_sections", raw.ARRAY, (raw.I32, [3, 3, 1, 1]), "fourth"),
        ("qwen35", "attention.recurrent_layers", raw.ARRAY, (raw.BOOL, [1, 1]), "2 of 4 layers"),
        ("qwen35", "attention.recurrent_layers", raw.ARRAY, (raw.BOOL, [1, 1, 0, 0]), "lacks blk"),
    ],
)  # fmt: skip
def test_what_npurt_does_not_do_is_refused_by_name(tmp_path, model, key, kind, value, match):
    file = tiny.read(tiny.path(model, "f32")).with_key(f"{model}.{key}", kind, value)

    with pytest.raises(ModelFormatError, match=match) as caught:
        logits(file, tmp_path)
    assert caught.value.remedy


def test_a_part_that_an_architecture_has_not_is_refused(qwen3, qwen35, tmp_path):
    experts = variants.with_experts(qwen3, "qwen3", 4, 2)
    with pytest.raises(ModelFormatError, match="has experts, but models of architecture qwen3"):
        logits(experts, tmp_path)
    with pytest.raises(ModelFormatError, match="has delta nets, but"):
        logits(variants.renamed(qwen35, "qwen3"), tmp_path)
    half = variants.with_experts(qwen3, "qwen2moe", 4, 2)
    with pytest.raises(ModelFormatError, match="ffn_gate_inp_shexp"):
        logits(half, tmp_path)


def test_numpy_runs_experts_of_an_odd_width(qwen3, tmp_path):
    """Kernels need multiples of 16 rows; the report says which products numpy computes instead."""
    path = tiny.write(variants.with_experts(qwen3, "qwen3moe", 4, 2, n_ff=40), tmp_path)
    with npurt.Llama(path, n_ctx=32, kv_type="f32") as llm:
        y = llm.eval(tiny.ids("qwen3", 12))
        (reason,) = {row.reason for row in llm.report().rows if row.actual == "numpy"}
    with npurt.Llama(path, "numpy", n_ctx=32, kv_type="f32") as llm:
        wanted = llm.eval(tiny.ids("qwen3", 12))
    with pytest.raises(NotOffloaded, match="N % 16"):
        npurt.Llama(path, n_ctx=32, strict=True)

    assert "N % 16" in reason
    assert nmse(y, wanted) < 1e-9


def test_each_architecture_is_named_as_files_name_it():
    assert set(ARCHITECTURES) == {
        "bert", "exaone4", "gemma", "gemma2", "gemma3", "glm4", "gpt-oss", "granite", "lfm2",
        "llama", "mistral3", "nomic-bert", "olmo2", "phi3", "qwen2", "qwen2moe", "qwen3",
        "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "smollm3",
    }  # fmt: skip
    assert all(name == find(name).name for name in ARCHITECTURES)
