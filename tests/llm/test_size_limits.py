"""Tests of size limits in GGUF files: the limit is accepted, and a larger size is refused.

The limits are those of the C kernels, which also check them: tests/cpu/test_limits.py.  Shapes that
a Hexagon cannot process run on the host: tests/hexagon/test_device.py.  For an RK3588, any shape is
cut into tasks.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

import npurt
from npurt.cpu.kernels.abi import limits
from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.file.config import read_config
from tests.llm import gguf_files as raw
from tests.llm import tiny, variants
from tests.llm.test_config import DELTA, MIXTURE, metadata

COLUMNS = limits().columns


@dataclass(frozen=True)
class Size:
    """A limited size: keys at the limit, keys past it, and the error message for the latter.

    Attributes:
        relies: The code that needs the limit.
        model: The tiny model that uses the keys.
    """

    relies: str
    at: dict[str, int]
    past: dict[str, int]
    match: str
    model: str = "llama3"
    sound: dict[str, int] = field(default_factory=dict)


def size(key, limit, relies, match=None, **options):
    """Return a `Size` of one key, which may be *limit* at most."""
    return Size(relies, {key: limit}, {key: limit + 1}, match or key, **options)


def heads(width):
    return {"attention.key_length": width, "attention.value_length": width}


def states(heads, width):
    return {"ssm.time_step_rank": heads, "ssm.state_size": width, "ssm.inner_size": heads * width}


MOE = {"model": "qwen3moe", "sound": MIXTURE}
SSM = {"model": "qwen35", "sound": {name.replace("__", "."): n for name, n in DELTA.items()}}
SIZES = [
    size("block_count", 1024, "memory of a plan"),
    size("context_length", COLUMNS, "positions are 32 bits wide in C"),
    size("embedding_length", COLUMNS, "limits.c: columns of an input", sound=heads(32)),
    size("feed_forward_length", COLUMNS // 2, "limits.c: columns of a weight", "feed-forward"),
    Size("attend__vec.c: a tile of heads on a thread's scratch",
         heads(limits().head), heads(limits().head + 16), "at most 256"),
    Size("attend__vec.c: whole vectors", heads(16), heads(24), "multiple of 16"),
    size("rope.dimension_count", 32, "ops__vec.c: rotates within a head", "rotate in pairs"),
    Size("attend__vec.c: query heads divide among key heads",
         {"attention.head_count_kv": 4}, {"attention.head_count_kv": 3}, "no multiple of"),
    Size("limits.c: columns of q, k and v are 32 bits wide",
         {"attention.head_count": 1 << 18, "attention.head_count_kv": 1 << 18} | heads(16),
         {"attention.head_count": 1 << 19, "attention.head_count_kv": 1 << 18} | heads(16),
         "attention has .* columns"),
    size("expert_count", limits().experts, "experts__vec.c: scratch of a choice", **MOE),
    Size("experts__vec.c: chooses among those there are",
         {"expert_used_count": 8}, {"expert_used_count": 9}, "uses 9 experts", **MOE),
    size("expert_feed_forward_length", COLUMNS // 2, "limits.c: columns of a weight",
         "part of an expert", **MOE),
    size("expert_shared_feed_forward_length", COLUMNS // 2, "limits.c: columns of a weight",
         "shared expert", **MOE),
    Size("delta__vec.c: arrays of a token on a thread's scratch; dsp/kernels/delta.h",
         states(2, limits().delta), states(2, limits().delta + 16), "at most 128", **SSM),
    Size("delta__vec.c: whole vectors", states(2, 16), states(2, 24), "multiple of 16", **SSM),
    Size("delta__vec.c: heads of v divide among those of k; dsp/batch.c",
         {"ssm.group_count": 3}, {"ssm.group_count": 4}, "no multiple of", **SSM),
    size("ssm.conv_kernel", limits().kernel_size, "delta__vec.c: pointers of a token", **SSM),
    Size("limits.c: channels are 32 bits wide",
         states(1 << 18, 16), states(1 << 20, 16), "a delta net has .* columns", **SSM),
    size("shortconv.l_cache", limits().kernel_size, "delta__vec.c: pointers of a token"),
]  # fmt: skip


def config_of(changes, n_vocab=1000):
    keys = {name.replace(".", "__"): value for name, value in changes.items()}
    return read_config(metadata(**keys), n_vocab)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: ", ".join(size.at))
def test_a_size_at_its_limit_is_read_and_one_past_it_is_refused(size):
    config_of(size.sound | size.at)
    with pytest.raises(ModelFormatError, match=size.match) as caught:
        config_of(size.sound | size.past)
    assert caught.value.remedy


@pytest.mark.parametrize("size", SIZES, ids=lambda size: ", ".join(size.at))
def test_a_model_with_a_size_past_its_limit_is_not_opened(size, tmp_path):
    file = tiny.read(tiny.path(size.model, "f32"))
    architecture = variants.key_of(file, "general.architecture")
    for name, value in size.past.items():
        file = file.with_key(f"{architecture}.{name}", raw.U32, value)

    with pytest.raises(NpurtError) as caught:
        npurt.Llama(tiny.write(file, tmp_path), progress=False)
    assert caught.value.remedy


def test_a_vocabulary_may_be_as_wide_as_a_product():
    assert config_of({}, COLUMNS).n_vocab == COLUMNS
    with pytest.raises(ModelFormatError, match="16777217 columns"):
        config_of({}, COLUMNS + 1)


# --- At the limit, from a file --------------------------------------------------------------------


def logits(file, folder, **options):
    """Return the last logits of the longest possible run, and the logits of one more token."""
    file = file.with_key(f"{variants.key_of(file, 'general.architecture')}.context_length", 4, 528)
    with npurt.Llama(tiny.write(file, folder), progress=False, n_ctx=528, **options) as llm:
        many = llm.eval([7] * limits().rows)[-1]
        return many, llm.eval_last([7])


def test_the_widest_heads_and_the_most_rows_of_a_run(tmp_path):
    rng, file = np.random.default_rng(0), tiny.read(tiny.path("qwen3", "f32"))
    arrays, width = variants.values(file), limits().head
    n_heads = variants.key_of(file, "qwen3.attention.head_count")
    kv_heads = variants.key_of(file, "qwen3.attention.head_count_kv")
    columns = arrays["token_embd.weight"].shape[1]
    for name in list(arrays):
        shapes = {
            "attn_q": (n_heads * width, columns),
            "attn_k": (kv_heads * width, columns),
            "attn_v": (kv_heads * width, columns),
            "attn_output": (columns, n_heads * width),
            "attn_q_norm": (width,),
            "attn_k_norm": (width,),
        }
        shape = shapes.get(name.split(".")[-2])
        if shape:
            arrays[name] = (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
    file = variants.with_values(file, arrays)
    for name, value in (heads(width) | {"rope.dimension_count": width}).items():
        file = file.with_key(f"qwen3.{name}", raw.U32, value)

    assert all(np.isfinite(row).all() for row in logits(file, tmp_path))


def test_the_most_experts_and_the_most_of_them_for_a_token(tmp_path):
    file = variants.with_experts(
        tiny.read(tiny.path("qwen3", "f32")), "qwen3moe", limits().experts, 8, n_ff=16, layers=[0]
    )

    assert all(np.isfinite(row).all() for row in logits(file, tmp_path))


def test_a_shared_expert_that_is_wider_than_all_else(tmp_path):
    """Gate and up together have 32768 columns, in chunks of 8 panels, more than a 256th each."""
    file = variants.with_experts(
        tiny.read(tiny.path("qwen2", "f32")), "qwen2moe", 4, 2, shared=1 << 14, layers=[0]
    )

    assert all(np.isfinite(row).all() for row in logits(file, tmp_path))
