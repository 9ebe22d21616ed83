"""Tests of dimensions in metadata: if they are missing or inconsistent, an error names the key."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import ModelFormatError
from npurt.llm.file.config import (
    Config,
    DeltaHeads,
    Experts,
    Scaling,
    read_config,
    require_context,
)
from tests.llm import gguf_files as raw

ARCH = "llama"
KEYS = {
    "block_count": 3,
    "context_length": 512,
    "embedding_length": 128,
    "feed_forward_length": 288,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5e5,
}


def metadata(arch=ARCH, **changes):
    """Return valid metadata with *changes*: ``__`` stands for a dot, and None removes a key."""
    keys = KEYS | {name.replace("__", "."): value for name, value in changes.items()}
    held = {f"{arch}.{name}": value for name, value in keys.items() if value is not None}
    return {"general.architecture": arch} | held


def refused(match, **changes):
    with pytest.raises(ModelFormatError, match=match) as caught:
        read_config(metadata(**changes), 1000)
    assert caught.value.remedy


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_sound_file_gives_its_dimensions(arch):
    assert read_config(metadata(arch), 1000) == Config(
        architecture=arch,
        n_layers=3,
        n_context=512,
        width=128,
        n_ff=288,
        n_heads=4,
        n_kv_heads=2,
        head_width=32,
        n_vocab=1000,
        eps=1e-5,
        rope_base=5e5,
        rotated=32,
        scaling=Scaling(),
        attention_scale=32**-0.5,
    )


def test_what_old_files_leave_out_has_its_usual_value():
    config = read_config(metadata(attention__head_count_kv=None, rope__freq_base=None), 1000)

    assert (config.n_kv_heads, config.rope_base) == (4, 10000.0)


def test_what_new_files_add_is_used():
    config = read_config(
        metadata(
            attention__key_length=64,
            attention__value_length=64,
            attention__scale=0.5,
            rope__dimension_count=16,
        ),
        1000,
    )

    assert (config.head_width, config.rotated, config.attention_scale) == (64, 16, 0.5)


@pytest.mark.parametrize("name", [n for n in KEYS if n[-2:] != "kv" and n[:4] != "rope"])
def test_a_key_that_is_missing_or_of_another_type_is_refused_by_name(name):
    changed = name.replace(".", "__")
    for value in (None, "3", True, [3], 3.5 if name[-7:] != "epsilon" else "x"):
        refused(f"{ARCH}.{name}", **{changed: value})


def test_without_an_architecture_there_is_no_configuration():
    for keys in ({}, {"general.architecture": 3}):
        with pytest.raises(ModelFormatError, match=r"general\.architecture"):
            read_config(keys, 1000)


def test_a_list_of_equal_numbers_counts_as_the_number():
    lists = {
        "attention__head_count": [4, 4, 4, 9],  # one more than the blocks
        "feed_forward_length": [288, 288, 288],
        "attention__key_length": [32, 32, 32],
    }
    changes = {name: raw.view("i", values) for name, values in lists.items()}
    assert read_config(metadata(**changes), 1000) == read_config(metadata(), 1000)
    for name in lists:
        refused("differs by layer", **{name: raw.view("i", [])})
        refused("array of numbers", **{name: raw.view("f", [4.0, 4.0, 4.0])})
    refused("differs by layer", block_count=raw.view("i", [3, 3, 3]))


def test_dimensions_that_differ_by_layer_are_refused_as_such():
    refused("differs by layer", attention__head_count=raw.view("i", [4, 2, 4]))
    refused("differs by layer", feed_forward_length=raw.view("i", [288, 0, 288]))


@pytest.mark.parametrize(
    "name", ["block_count", "context_length", "embedding_length", "feed_forward_length",
             "attention__head_count", "attention__head_count_kv", "attention__key_length",
             "attention__value_length", "rope__dimension_count"]
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1, 1 << 31, (1 << 64) - 1])
def test_counts_that_make_no_sense_are_refused(name, value):
    refused(name.replace("__", "."), **{name: value})


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("no multiple of 3 kv heads", {"attention__head_count_kv": 3}),
        ("needs equal widths", {"attention__value_length": 64}),
        ("multiple of 16", {"attention__key_length": 24, "attention__value_length": 24}),
        ("multiple of 16", {"embedding_length": 96}),
        ("cannot rotate", {"rope__dimension_count": 48}),
        ("cannot rotate", {"rope__dimension_count": 15}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": 0.0}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": -1e-5}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": math.nan}),
        ("rotary base", {"rope__freq_base": 0.0}),
        ("rotary base", {"rope__freq_base": 1.0}),
        ("rotary base", {"rope__freq_base": math.inf}),
        ("rotary base of sliding layers", {"rope__freq_base_swa": 0.0}),
        ("rotary base of sliding layers", {"rope__freq_base_swa": 1.0}),
        ("attention scale", {"attention__scale": 0.0}),
        ("attention scale", {"attention__scale": math.nan}),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_each_other_or_the_kernels_are_refused(match, changes):
    refused(match, **changes)


# --- Experts and delta nets -----------------------------------------------------------------------

MIXTURE = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 96}
DELTA = {"ssm__conv_kernel": 4, "ssm__state_size": 32, "ssm__group_count": 2,
         "ssm__time_step_rank": 6, "ssm__inner_size": 192}  # fmt: skip


def test_experts_are_read_as_written():
    plain = read_config(metadata(**MIXTURE), 1000).experts
    assert plain == Experts(count=8, top_k=3, n_ff=96, n_ff_shared=288, normed=None, scale=1.0)

    told = MIXTURE | {"expert_weights_norm": False, "expert_weights_scale": 2.5}
    told |= {"expert_shared_feed_forward_length": 64, "feed_forward_length": None}
    assert read_config(metadata(**told), 1000).experts == Experts(8, 3, 96, 64, False, 2.5)


def test_experts_of_no_width_of_their_own_share_that_of_the_model():
    """Without a width in the file, the used experts divide feed_forward_length, as in llama.cpp.

    Each expert of Mixtral has the whole width.
    """
    keys = MIXTURE | {"expert_feed_forward_length": None}
    assert read_config(metadata("qwen2moe", **keys), 1000).experts.n_ff == 288 // 3
    assert read_config(metadata("llama", **keys), 1000).experts.n_ff == 288


def test_no_experts_are_no_mixture():
    assert read_config(metadata(expert_count=0), 1000).experts is None


def test_delta_nets_are_read_as_written_and_counted_off():
    config = read_config(metadata(**DELTA), 1000)
    assert config.delta == DeltaHeads(heads=6, k_heads=2, width=32, kernel_size=4)
    assert config.delta.channels == 2 * 2 * 32 + 6 * 32
    assert config.recurrent == (True, True, True)

    listed = raw.view("?", [True, False, True, False])
    config = read_config(metadata(**DELTA, attention__recurrent_layers=listed), 1000)
    assert [config.is_recurrent(i) for i in range(3)] == [True, False, True]
    config = read_config(metadata(**DELTA, full_attention_interval=3, block_count=7), 1000)
    assert config.recurrent == (True, True, False, True, True, False, True)


def test_blocks_that_look_ahead_are_no_layers():
    config = read_config(metadata(nextn_predict_layers=1), 1000)
    assert (config.n_layers, config.n_ahead) == (2, 1)
    refused("no layer remains", nextn_predict_layers=3)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("uses 9 experts", MIXTURE | {"expert_used_count": 9}),
        ("expert_used_count", MIXTURE | {"expert_used_count": None}),
        ("scaled by", MIXTURE | {"expert_weights_scale": -1.0}),
        ("scaled by", MIXTURE | {"expert_weights_scale": math.nan}),
        ("expert_weights_norm", MIXTURE | {"expert_weights_norm": 1}),
        ("feed_forward_length", {"feed_forward_length": None}),
        ("multiple of 16", DELTA | {"ssm__state_size": 24, "ssm__inner_size": 144}),
        ("the same width", DELTA | {"ssm__inner_size": 191}),
        ("no multiple of its 4 key heads", DELTA | {"ssm__group_count": 4}),
        ("1 of 3 layers", DELTA | {"attention__recurrent_layers": raw.view("?", [True])}),
        ("recurrent_layers", DELTA | {"attention__recurrent_layers": "all"}),
        ("by softmax", {"expert_gating_func": 2}),
        ("by groups", {"expert_group_count": 2}),
        ("causal", {"attention__causal": False}),
        ("fourth", {"rope__dimension_sections": raw.view("i", [3, 3, 1, 1])}),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_each_other_or_the_kernels_are_refused(match, changes):
    refused(match, **changes)


@pytest.mark.parametrize(("window", "n_ctx"), [(0, 4096), (100, 100), (100, 50)])
def test_a_window_as_wide_as_the_context_changes_nothing(window, n_ctx):
    require_context(metadata(attention__sliding_window=window), n_ctx)


def test_a_window_that_is_narrower_is_refused():
    with pytest.raises(ModelFormatError, match="sliding_window = 100") as caught:
        require_context(metadata(attention__sliding_window=100), 101)
    assert "at most 100" in caught.value.remedy


# --- Scaling of the rotation ----------------------------------------------------------------------


def scaling(**changes):
    keys = {f"rope__scaling__{name}": value for name, value in changes.items()}
    return read_config(metadata(**keys), 1000).scaling


def test_scaling_is_read_as_written():
    assert scaling(type="linear", factor=4.0) == Scaling("linear", 4.0)
    assert scaling(
        type="yarn",
        factor=4.0,
        original_context_length=128,
        attn_factor=1.25,
        yarn_beta_fast=16.0,
        yarn_beta_slow=2.0,
    ) == Scaling("yarn", 4.0, 128, 1.25, 16.0, 2.0)
    assert scaling(type="none", factor=4.0).kind == "none"


def test_a_factor_without_a_type_is_linear_also_by_its_old_name():
    assert scaling(factor=4.0) == Scaling("linear", 4.0)
    assert read_config(metadata(rope__scale_linear=8.0), 1000).scaling == Scaling("linear", 8.0)
    assert scaling(factor=1.0) == Scaling()


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("spiral", {"type": "spiral"}),
        ("type", {"type": 3}),
        ("original_context_length", {"type": "yarn", "factor": 2.0}),
        ("original_context_length",
         {"type": "yarn", "factor": 2.0, "original_context_length": -1}),
        ("factor", {"factor": 0.0}),
        ("factor", {"factor": -2.0}),
        ("factor", {"factor": math.nan}),
        ("factor", {"factor": 1e300}),
        ("factor", {"factor": "two"}),
        ("beta_fast", {"yarn_beta_fast": 0.0}),
        ("beta_slow", {"yarn_beta_slow": -1.0}),
        ("attention_factor", {"attn_factor": math.inf}),
    ],
)  # fmt: skip
def test_scaling_that_makes_no_sense_is_refused(match, changes):
    refused(match, **{f"rope__scaling__{name}": value for name, value in changes.items()})


anything = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-3, 300),
    st.floats(width=32),
    st.text(max_size=3),
    st.booleans(),
    st.lists(st.text(max_size=2), max_size=2),
    st.lists(st.integers(-9, 9), max_size=3).map(lambda items: raw.view("i", items)),
)
names = [
    *KEYS,
    "attention.key_length",
    "attention.value_length",
    "attention.scale",
    "rope.dimension_count",
    "rope.scale_linear",
    *("expert_" + name for name in ("count", "used_count", "feed_forward_length", "weights_norm")),
    *("ssm." + name for name in ("state_size", "inner_size", "group_count", "conv_kernel")),
    "nextn_predict_layers",
    *("rope.scaling." + name for name in (
        "type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast",
        "yarn_beta_slow")),
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(names), anything, max_size=4), st.integers(1, 2**63))
def test_any_metadata_gives_a_configuration_that_holds_together_or_is_refused(changes, n_vocab):
    keys = metadata() | {f"{ARCH}.{name}": value for name, value in changes.items()}
    try:
        config = read_config(keys, n_vocab)
    except ModelFormatError:
        return

    assert config.n_heads % config.n_kv_heads == 0
    assert config.rotated <= config.head_width <= 256
    assert config.n_layers <= 1024
    assert math.isfinite(config.attention_scale)
