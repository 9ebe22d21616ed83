"""Build the graph of each part of a decoder layer: attention, feed-forward, experts, delta net.

Each function adds ops to a builder and returns the tensor that the layer adds to the residual
stream.  Letters: T rows, D width, H heads, G kv heads, W head width, F feed-forward width, E
experts.
Source of the tensor names: llama.cpp src/llama-arch.cpp, MIT.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from npurt.graph.ops import Activation, Pairing, Precision
from npurt.graph.tensor import Dim, Tensor
from npurt.llm.arch.architecture import Architecture, QKNorm, RopePairs, UnitConventions
from npurt.llm.arch.model_builder import ModelBuilder
from npurt.llm.file.config import Config, DeltaHeads

# The projections to q, k and v and the output matrix need int16 activations.  The inputs of the
# down projection have the largest outliers, so one scale for a whole row causes the largest error
# in this product (docs/decisions/006).
INT16, BLOCK8, EXACT = Precision.INT16, Precision.BLOCK8, Precision.EXACT

Ropes = Callable[..., tuple[Tensor, float]]  # (local=) -> frequencies, factor of cos and sin

LENGTH_EPS = 1e-6  # epsilon of the L2 norms of q and k in a delta net: transformers l2norm()


def attention(
    b: ModelBuilder, arch: Architecture, config: Config, layer: int, x: Tensor, ropes: Ropes
) -> Tensor:
    """Add causal grouped-query attention and its output projection."""
    block, rule = f"blk.{layer}", arch.layer(config, layer)
    heads, kv_heads = config.n_heads, config.n_kv_heads
    q, k, v, gate = qkv(b, arch, config, block, x)
    if arch.qk_norm is not QKNorm.NONE:
        each = arch.qk_norm is QKNorm.HEAD
        q = b.norm(f"{block}.attn_q_norm", q, config.eps, heads if each else 1)
        k = b.norm(f"{block}.attn_k_norm", k, config.eps, kv_heads if each else 1)
    if rule.rotates:
        table, magnitude = ropes(local=rule.local)
        pairing = Pairing.HALVES if arch.rope is RopePairs.HALVES else Pairing.ADJACENT
        q = b.rope(f"{block}.q_rope", q, table, heads, pairing, magnitude)
        k = b.rope(f"{block}.k_rope", k, table, kv_heads, pairing, magnitude)
    out = b.attention(
        f"{block}.attention", q, k, v, heads, kv_heads, config.attention_scale,
        sinks=b.vector(f"{block}.attn_sinks.weight", Dim("H", heads)) if arch.sinks else None,
        window=rule.window,
        softcap=config.conventions.attention_softcap,
        temperature=config.conventions.temperature,
    )  # fmt: skip
    if gate is not None:
        out = b.sigmoid_gate(f"{block}.attention_gate", out, gate)
    return b.linear(f"{block}.attn_output", out, Dim("D", config.width))


def qkv(
    b: ModelBuilder, arch: Architecture, config: Config, block: str, x: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return q, k, v and the gate of the attention output, or None without a gate.

    The file has three weights or one fused weight.
    """
    q, kv = config.n_heads * config.head_width, config.n_kv_heads * config.head_width
    fused = b.has(f"{block}.attn_qkv.weight")
    stored = b.shape(f"{block}.attn_qkv.weight" if fused else f"{block}.attn_q.weight")
    gated = arch.gated and stored[:1] == (2 * q + (2 * kv if fused else 0),)
    rows = 2 * q if gated else q
    if fused:
        whole = b.linear(f"{block}.attn_qkv", x, Dim("Q+2KV", rows + 2 * kv), "attn_qkv", INT16)
        pieces = {f"{block}.attn_q": rows, f"{block}.attn_k": kv, f"{block}.attn_v": kv}
        first, k, v = b.split(whole, pieces)
    else:
        first = b.linear(f"{block}.attn_q", x, Dim("Q", rows), "attn_qkv", INT16)
        k = b.linear(f"{block}.attn_k", x, Dim("KV", kv), "attn_qkv", INT16)
        v = b.linear(f"{block}.attn_v", x, Dim("KV", kv), "attn_qkv", INT16)
    if not gated:
        return first, k, v, None
    query, gate = b.split(first, {f"{block}.query": q, f"{block}.gate": q}, config.n_heads)
    return query, k, v, gate


def feed_forward(
    b: ModelBuilder, unit: UnitConventions, block: str, x: Tensor, n_ff: int, suffix: str = ""
) -> Tensor:
    """Add the gate, up and down projections.

    The file may have gate and up in one weight, ``ffn_up``, with the rows of the gate first.
    """
    gate_name, up_name = f"{block}.ffn_gate{suffix}", f"{block}.ffn_up{suffix}"
    if b.shape(f"{up_name}.weight")[:1] == (2 * n_ff,) and not b.has(f"{gate_name}.weight"):
        both = b.linear(up_name, x, Dim("2F", 2 * n_ff), "ffn_gate_up")
        gate, up = b.split(both, {f"{up_name}.gate": n_ff, f"{up_name}.up": n_ff})
    else:
        gate = b.linear(gate_name, x, Dim("F", n_ff), "ffn_gate_up")
        up = b.linear(up_name, x, Dim("F", n_ff), "ffn_gate_up")
    active = b.gated_unit(f"{block}.ffn_active{suffix}", gate, up, **_fields(unit))
    precision = Precision.ROW8 if suffix else BLOCK8
    return b.linear(f"{block}.ffn_down{suffix}", active, x.shape[-1], "ffn_down", precision)


def _fields(unit: UnitConventions) -> dict[str, Any]:
    return {field.name: getattr(unit, field.name) for field in fields(unit)}


def mixture(b: ModelBuilder, arch: Architecture, config: Config, block: str, x: Tensor) -> Tensor:
    """Add the experts that a router chooses, and the shared expert if the architecture has one."""
    e = config.experts
    assert arch.mixture is not None, "the architecture has no experts"
    assert e is not None, "the configuration has no experts"
    count, f, d = Dim("E", e.count), Dim("F", e.n_ff), x.shape[-1]
    scores = b.linear(f"{block}.ffn_gate_inp", x, count, "route", EXACT)
    gate = None
    if arch.mixture.shared:
        gate = b.linear(f"{block}.ffn_gate_inp_shexp", x, Dim("1", 1), "route", EXACT)
        shared = feed_forward(b, arch.unit, block, x, e.n_ff_shared, "_shexp")
    normed = arch.mixture.normed if e.normed is None else e.normed
    experts, weights = b.route(
        f"{block}.route", scores, e.top_k, arch.mixture.gating, normalise=normed, scale=e.scale
    )

    def multiply(part: str, inputs: Tensor, rows: Dim, role: str) -> Tensor:
        name = f"{block}.{part}"
        stack = b.weight(f"{name}.weight", count, rows, inputs.shape[-1])
        bias = b.bias(f"{name}.bias", count, rows)
        return b.expert_matmul(name, inputs, stack, experts, bias, role)

    if b.has(f"{block}.ffn_gate_up_exps.weight"):
        both = multiply("ffn_gate_up_exps", x, Dim("2F", 2 * e.n_ff), "ffn_gate_up")
        names = {f"{block}.ffn_gate_exps": e.n_ff, f"{block}.ffn_up_exps": e.n_ff}
        first, second = b.split(both, names)
    else:
        first = multiply("ffn_gate_exps", x, f, "ffn_gate_up")
        second = multiply("ffn_up_exps", x, f, "ffn_gate_up")
    active = b.gated_unit(f"{block}.ffn_active_exps", first, second, **_fields(arch.unit))
    results = multiply("ffn_down_exps", active, d, "ffn_down")
    out = b.weighted_sum(f"{block}.experts", results, weights)
    if gate is None:
        return out
    return b.add(f"{block}.ffn", out, b.sigmoid_gate(f"{block}.shared", shared, gate))


def short_convolution(b: ModelBuilder, config: Config, block: str, x: Tensor) -> Tensor:
    """Add a short convolution with gates on its input and output: ``out_proj(c * conv(b * x))``."""
    d = x.shape[-1]
    whole = b.linear(f"{block}.shortconv.in_proj", x, Dim("3D", 3 * config.width))
    names = [f"{block}.conv_{part}" for part in ("before", "after", "input")]
    before, after, value = b.split(whole, dict.fromkeys(names, config.width))
    gated = b.multiply(f"{block}.conv_gated", before, value)
    kernel = b.vector(f"{block}.shortconv.conv.weight", d, Dim("kernel_size", config.kernel_size))
    mixed = b.short_conv(f"{block}.conv", gated, kernel)
    out = b.multiply(f"{block}.conv_out", after, mixed)
    return b.linear(f"{block}.shortconv.out_proj", out, d)


def delta_net(b: ModelBuilder, arch: Architecture, config: Config, block: str, x: Tensor) -> Tensor:
    """Add the projections, a short convolution, the gated delta net and a gated norm."""
    net = config.delta
    assert net is not None, "the configuration has no delta net"
    assert arch.delta is not None, "the architecture has no delta nets"
    heads, inner = Dim("H", net.heads), net.heads * net.width
    qkv, z, beta, alpha = _projections(b, net, block, x)
    kernel = b.vector(
        f"{block}.ssm_conv1d.weight", Dim("C", net.channels), Dim("kernel_size", net.kernel_size)
    )
    mixed = b.short_conv(f"{block}.conv", qkv, kernel, activation=Activation.SILU)
    keys = net.k_heads * net.width
    q, k, v = b.split(mixed, {f"{block}.q": keys, f"{block}.k": keys, f"{block}.v": inner})
    q = b.l2_norm(f"{block}.q_norm", q, LENGTH_EPS, net.k_heads)
    k = b.l2_norm(f"{block}.k_norm", k, LENGTH_EPS, net.k_heads)
    rate, bias = b.vector(f"{block}.ssm_a", heads), b.vector(f"{block}.ssm_dt.bias", heads)
    gates = b.delta_gates(f"{block}.gates", beta, alpha, rate, bias)
    out = b.gated_delta_net(
        f"{block}.delta_net", (q, k, v), gates, net.heads, net.k_heads, grouped=arch.delta.grouped
    )
    weight = b.vector(f"{block}.ssm_norm.weight", Dim("W", net.width))
    out = b.gated_norm(f"{block}.ssm_norm", out, z, weight, config.eps, net.heads)
    return b.linear(f"{block}.ssm_out", out, x.shape[-1])


def _projections(
    b: ModelBuilder, net: DeltaHeads, block: str, x: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four tensors: q, k and v concatenated along the columns; z; beta; alpha.

    The file may have beta and alpha as rows of one tensor, and q, k, v and z as rows of another.
    """
    inner = net.heads * net.width
    rows = joined_rows(net)
    sizes = {"ssm_ba": 2 * net.heads, "ssm_in": net.channels + inner}
    joined = {
        name: b.weight(f"{block}.{name}.weight", Dim("N", n), x.shape[-1])
        for name, n in sizes.items()
        if b.has(f"{block}.{name}.weight")
    }

    def project(name: str, joint: str, columns: Dim) -> Tensor:
        how = ("delta_gates", EXACT) if joint == "ssm_ba" else ("attn_qkv", INT16)
        if joint not in joined:
            return b.linear(f"{block}.{name}", x, columns, *how)
        weight = b.part(f"{block}.{name}.weight", joined[joint], rows[name])
        return b.matmul(f"{block}.{name}", x, weight, None, *how)

    return (
        project("attn_qkv", "ssm_in", Dim("C", net.channels)),
        project("attn_gate", "ssm_in", Dim("HW", inner)),
        project("ssm_beta", "ssm_ba", Dim("H", net.heads)),
        project("ssm_alpha", "ssm_ba", Dim("H", net.heads)),
    )


def joined_rows(net: DeltaHeads) -> dict[str, npt.NDArray[np.intp]]:
    """Return the row indices of each weight in the joined tensors ssm_ba and ssm_in.

    For each key head, ssm_ba has the rows of beta, then the rows of alpha; ssm_in has the rows of
    q, k, v and z.
    """
    share = net.heads // net.k_heads
    groups = np.arange(2 * net.heads).reshape(net.k_heads, 2, share)
    size = 2 * net.width + 2 * share * net.width
    whole = np.arange(net.k_heads * size).reshape(net.k_heads, size)
    q, k, v, z = np.split(whole, np.cumsum([net.width, net.width, share * net.width]), axis=1)
    return {
        "ssm_beta": groups[:, 0].reshape(-1),
        "ssm_alpha": groups[:, 1].reshape(-1),
        "attn_qkv": np.concatenate([part.reshape(-1) for part in (q, k, v)]),
        "attn_gate": z.reshape(-1),
    }
