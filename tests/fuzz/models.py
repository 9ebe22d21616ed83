"""Make GGUF files of any sizes: all tensors of an architecture, from its hyper-parameters.

This code does not use npurt's code for architectures.  Sources: llama.cpp
gguf-py/gguf/constants.py (names of keys and tensors), src/models (shapes), MIT.
"""

import math

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from tests.llm import gguf_files as raw

ALIGNMENT = 32
FLOATS = (0, 1, 30)  # F32, F16, BF16
# Block format -> the first byte of its float16 scales, and their number.
SCALES = {
    2: (0, 1), 3: (0, 2), 6: (0, 1), 7: (0, 2), 8: (0, 1), 10: (80, 2), 11: (108, 1), 12: (0, 2),
    13: (0, 2), 14: (208, 1), 20: (0, 1), 23: (0, 1),
}  # fmt: skip
MXFP4 = 39  # the scale is the exponent in byte 0
TYPES = (*FLOATS, *SCALES, MXFP4)

# Sizes by the key without the name of the architecture; "vocabulary" is the number of tokens.
DENSE = {
    "block_count": 2, "embedding_length": 64, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 16, "attention.value_length": 16,
    "rope.dimension_count": 16, "feed_forward_length": 96, "context_length": 512, "vocabulary": 288,
}  # fmt: skip
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
SHARED = EXPERTS | {"expert_shared_feed_forward_length": 32}
DELTA = {
    "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 16, "ssm.inner_size": 64,
    "ssm.conv_kernel": 4, "full_attention_interval": 2,
}  # fmt: skip
ARCHITECTURES = {
    "llama": DENSE,
    "qwen2": DENSE,
    "qwen3": DENSE,
    "mixtral": DENSE | EXPERTS,  # of architecture llama
    "qwen3moe": DENSE | EXPERTS,
    "qwen2moe": DENSE | SHARED,
    "qwen35": DENSE | DELTA,
    "qwen35moe": DENSE | SHARED | DELTA,
    "qwen3next": DENSE | SHARED | DELTA,
}


def tensors(kind, sizes, have=()):
    """Yield (name, shape in numpy's order) of every tensor.

    Args:
        kind: A key of `ARCHITECTURES`.
        sizes: The sizes of `ARCHITECTURES` for this kind.
        have: Variants: "output", "freqs", "bias", "fused_qkv", "gated", "fused_experts".
    """
    d, v = sizes["embedding_length"], sizes["vocabulary"]
    yield "token_embd.weight", (v, d)
    yield "output_norm.weight", (d,)
    if "output" in have:
        yield "output.weight", (v, d)
    if "freqs" in have:
        yield "rope_freqs.weight", (sizes["rope.dimension_count"] // 2,)
    for i in range(sizes["block_count"]):
        block = f"blk.{i}"
        yield f"{block}.attn_norm.weight", (d,)
        delta = kind in ("qwen35", "qwen35moe", "qwen3next")
        yield f"{block}.{'post_attention_norm' if delta else 'ffn_norm'}.weight", (d,)
        if delta and (i + 1) % max(1, sizes["full_attention_interval"]):
            yield from _delta(block, sizes)
        else:
            yield from _attention(kind, block, sizes, have, gated=delta and "gated" in have)
        yield from _feed_forward(block, sizes, have)


def _attention(kind, block, sizes, have, *, gated):
    d, width = sizes["embedding_length"], sizes["attention.key_length"]
    q, kv = (sizes[f"attention.head_count{x}"] * width for x in ("", "_kv"))
    q_rows = 2 * q if gated else q
    rows = {"attn_q": q_rows, "attn_k": kv, "attn_v": kv}
    if "fused_qkv" in have:
        rows = {"attn_qkv": q_rows + 2 * kv}
    for name, n in rows.items():
        yield f"{block}.{name}.weight", (n, d)
        if "bias" in have:
            yield f"{block}.{name}.bias", (n,)
    yield f"{block}.attn_output.weight", (d, q)
    if kind.startswith("qwen3"):
        yield f"{block}.attn_q_norm.weight", (width,)
        yield f"{block}.attn_k_norm.weight", (width,)


def _delta(block, sizes):
    heads, k_heads, width = (
        sizes[f"ssm.{n}"] for n in ("time_step_rank", "group_count", "state_size")
    )
    d, channels = sizes["embedding_length"], (2 * k_heads + heads) * width
    yield f"{block}.attn_qkv.weight", (channels, d)
    yield f"{block}.attn_gate.weight", (heads * width, d)
    yield f"{block}.ssm_beta.weight", (heads, d)
    yield f"{block}.ssm_alpha.weight", (heads, d)
    yield f"{block}.ssm_conv1d.weight", (channels, sizes["ssm.conv_kernel"])
    yield f"{block}.ssm_a", (heads,)
    yield f"{block}.ssm_dt.bias", (heads,)
    yield f"{block}.ssm_norm.weight", (width,)
    yield f"{block}.ssm_out.weight", (d, heads * width)


def _feed_forward(block, sizes, have):
    d, f = sizes["embedding_length"], sizes["feed_forward_length"]
    if "expert_count" not in sizes:
        for name, shape in (("gate", (f, d)), ("up", (f, d)), ("down", (d, f))):
            yield f"{block}.ffn_{name}.weight", shape
        return
    e, x = sizes["expert_count"], sizes["expert_feed_forward_length"]
    yield f"{block}.ffn_gate_inp.weight", (e, d)
    if "fused_experts" in have:
        yield f"{block}.ffn_gate_up_exps.weight", (e, 2 * x, d)
    else:
        yield f"{block}.ffn_gate_exps.weight", (e, x, d)
        yield f"{block}.ffn_up_exps.weight", (e, x, d)
    yield f"{block}.ffn_down_exps.weight", (e, d, x)
    if "expert_shared_feed_forward_length" in sizes:
        s = sizes["expert_shared_feed_forward_length"]
        yield f"{block}.ffn_gate_inp_shexp.weight", (d,)
        yield f"{block}.ffn_gate_shexp.weight", (s, d)
        yield f"{block}.ffn_up_shexp.weight", (s, d)
        yield f"{block}.ffn_down_shexp.weight", (d, s)


def type_for(name, shape, wanted):
    """Return *wanted* as the type of a tensor, or F32 if the tensor cannot have that type."""
    vector = len(shape) == 1 or "conv1d" in name
    fits = shape and shape[-1] % GGML_QUANT_SIZES[wanted][0] == 0
    return wanted if fits and (wanted in FLOATS or not vector) else 0


def nbytes(shape, kind):
    """Return the bytes of a tensor."""
    block, size = GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


def content(rng, name, shape, kind):
    """Return the bytes of a tensor: repeated numbers with magnitudes of trained models."""
    wanted = nbytes(shape, kind)
    if kind in FLOATS:
        values = rng.standard_normal(997).astype(np.float32) * (shape[-1] or 1) ** -0.5
        if len(shape) == 1:
            values = np.abs(values) + 0.5
        if name.endswith("ssm_a"):  # a state decays
            values = -values
        bits = values.view(np.uint32)
        tile = {0: bits, 1: values.astype(np.float16), 30: (bits >> 16).astype(np.uint16)}[kind]
        return np.resize(tile.view(np.uint8), wanted)
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (61, size), np.uint8)
    if kind == MXFP4:
        blocks[:, 0] = rng.integers(116, 122, 61)
    else:
        first, count = SCALES[kind]
        scales = rng.standard_normal((61, count)).astype(np.float16) * np.float16(0.01)
        blocks[:, first : first + 2 * count] = scales.view(np.uint8)
    return np.resize(blocks, wanted)


def tokenizer_keys(count):
    """Return the keys of a tokenizer of *count* tokens: bytes first, and some merges."""
    letters = [chr(c) for c in range(33, 127)] + [chr(c) for c in range(161, 173)]
    letters += [chr(c) for c in range(174, 256)] + [chr(256 + i) for i in range(68)]
    merges = ["t h", "th e", "Ġ a", "i n"]
    tokens = letters + [merge.replace(" ", "") for merge in merges]
    tokens = (tokens + [f"<{i}>" for i in range(len(tokens), count)])[:count]
    merges = merges if count >= len(letters) + len(merges) else []
    return [
        ("tokenizer.ggml.model", raw.STRING, "gpt2"),
        ("tokenizer.ggml.pre", raw.STRING, "qwen2"),
        ("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, tokens)),
        ("tokenizer.ggml.token_type", raw.ARRAY, (raw.I32, [1] * count)),
        ("tokenizer.ggml.merges", raw.ARRAY, (raw.STRING, merges)),
        ("tokenizer.ggml.eos_token_id", raw.U32, 0),
    ]


def keys(kind, sizes):
    """Return the metadata of a model."""
    arch = "llama" if kind == "mixtral" else kind
    found = [
        ("general.architecture", raw.STRING, arch),
        (f"{arch}.attention.layer_norm_rms_epsilon", raw.F32, 1e-5),
    ]
    for name, value in sizes.items():
        if name != "vocabulary":
            number = raw.U32 if value < 1 << 32 else raw.U64
            found.append((f"{arch}.{name}", number, value))
    return found + tokenizer_keys(min(sizes["vocabulary"], 1 << 19))
