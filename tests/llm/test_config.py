"""Dimensions are read from metadata whole and consistent, or the file is refused by key."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import ModelFormatError
from npurt.llm.config import Config, Scaling, read_config

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
    """Return sound metadata with some keys changed, ``__`` for dots; None takes one away."""
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


def test_dimensions_that_differ_by_layer_are_refused_as_such():
    refused("differs by layer", attention__head_count=np.array([4, 2, 4], np.int32))
    refused("differs by layer", feed_forward_length=np.array([288, 0, 288], np.int32))


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
        ("do not share", {"attention__head_count_kv": 3}),
        ("needs them equal", {"attention__value_length": 64}),
        ("multiple of 16", {"attention__key_length": 24, "attention__value_length": 24}),
        ("at most 256", {"attention__key_length": 272, "attention__value_length": 272}),
        ("multiple of 16", {"embedding_length": 96}),
        ("cannot rotate", {"rope__dimension_count": 48}),
        ("cannot rotate", {"rope__dimension_count": 15}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": 0.0}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": -1e-5}),
        ("epsilon", {"attention__layer_norm_rms_epsilon": math.nan}),
        ("rotary base", {"rope__freq_base": 0.0}),
        ("rotary base", {"rope__freq_base": 1.0}),
        ("rotary base", {"rope__freq_base": math.inf}),
        ("attention scale", {"attention__scale": 0.0}),
        ("attention scale", {"attention__scale": math.nan}),
        ("block_count", {"block_count": 1025}),
        ("columns", {"feed_forward_length": (1 << 18) + 1}),
        ("columns", {"attention__head_count": 1 << 16, "attention__head_count_kv": 1 << 16,
                     "attention__key_length": 16, "attention__value_length": 16}),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_each_other_or_the_kernels_are_refused(match, changes):
    refused(match, **changes)


def test_a_vocabulary_that_the_kernels_cannot_take_at_once_is_refused():
    assert read_config(metadata(), 1 << 18).n_vocab == 1 << 18
    with pytest.raises(ModelFormatError, match="262145 columns"):
        read_config(metadata(), (1 << 18) + 1)


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
        ("longrope", {"type": "longrope"}),
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
    st.lists(st.integers(-9, 9), max_size=3).map(lambda items: np.array(items, np.int32)),
)
names = [
    *KEYS,
    "attention.key_length",
    "attention.value_length",
    "attention.scale",
    "rope.dimension_count",
    "rope.scale_linear",
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
