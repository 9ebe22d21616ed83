"""The pre-norm decoder that Llama and Qwen2 share: which tensors, in which order, into a plan.

Letters: T rows in use, D width, H heads, G kv heads, W head width, F feed-forward width, V tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from npurt.cpu.engine import Input, empty
from npurt.cpu.program import Heads
from npurt.device import F32
from npurt.llm.cache import Cache
from npurt.llm.config import Config
from npurt.runtime.placement import Placed
from npurt.runtime.plan import Plan


class Rope(Enum):
    """Which elements of a head rotate together; the wrong one gives fluent nonsense."""

    ADJACENT = "(2i, 2i + 1)"
    HALVES = "(i, i + rotated / 2)"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What distinguishes one architecture of this family from another."""

    name: str
    rope: Rope


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a file must or may have."""

    shape: tuple[int, ...]  # numpy order: (N, K) for weights
    optional: bool = False


def tensors(config: Config) -> dict[str, Expected]:
    """Return every tensor of the architecture by name."""
    d, v = config.width, config.n_vocab
    table = {
        "token_embd.weight": Expected((v, d)),
        "output_norm.weight": Expected((d,)),
        "output.weight": Expected((v, d), optional=True),
        "output.bias": Expected((v,), optional=True),
        "rope_freqs.weight": Expected((config.rotated // 2,), optional=True),
    }
    for i in range(config.n_layers):
        table |= {f"blk.{i}.{name}": expected for name, expected in _block(config)}
    return table


def _block(config: Config) -> Iterator[tuple[str, Expected]]:
    d, f, w = config.width, config.n_ff, config.head_width
    q, kv = config.n_heads * w, config.n_kv_heads * w
    yield "attn_norm.weight", Expected((d,))
    yield "ffn_norm.weight", Expected((d,))
    for name, n, k in (
        ("attn_q", q, d),
        ("attn_k", kv, d),
        ("attn_v", kv, d),
        ("attn_output", d, q),
        ("ffn_gate", f, d),
        ("ffn_up", f, d),
        ("ffn_down", d, f),
    ):
        yield f"{name}.weight", Expected((n, k))
        yield f"{name}.bias", Expected((n,), optional=True)


@dataclass(slots=True)
class Model:
    """Everything a plan is built from."""

    config: Config
    rope: Rope
    weights: Mapping[str, Placed]  # by name without ".weight"
    norms: Mapping[str, F32]
    cos: F32
    sin: F32
    cache: Cache
    rows: int  # most rows of one run


@dataclass(frozen=True, slots=True)
class Buffers:
    """Activations; each is reused by every layer."""

    x: F32  # [T, D] the residual stream
    to_attention: Input  # [T, D] normed
    to_ffn: Input  # [T, D] normed
    to_output: Input  # [T, D] normed
    qkv: F32  # [T, (H + 2 G) W]
    attended: Input  # [T, H W]
    out: F32  # [T, D] what is added to x next
    gate_up: F32  # [T, 2 F]
    active: Input  # [T, F]


def _input(model: Model, k: int, *names: str, fine: bool = False) -> Input:
    """Return an input for the weights of these names, in any layer."""
    integer = any(
        w.packed.tensor.format.block > 1
        for name, w in model.weights.items()
        if name.rpartition(".")[2] in names
    )
    return Input(model.rows, k, quantised=integer, fine=fine)


def buffers(model: Model) -> Buffers:
    """Take memory for the activations of *model*."""
    c, rows = model.config, model.rows
    return Buffers(
        x=empty(rows, c.width),
        to_attention=_input(model, c.width, "attn_q", "attn_k", "attn_v", fine=True),
        to_ffn=_input(model, c.width, "ffn_gate", "ffn_up"),
        to_output=_input(model, c.width, "output", fine=True),
        qkv=empty(rows, (c.n_heads + 2 * c.n_kv_heads) * c.head_width),
        attended=_input(model, c.n_heads * c.head_width, "attn_output"),
        out=empty(rows, c.width),
        gate_up=empty(rows, 2 * c.n_ff),
        active=_input(model, c.n_ff, "ffn_down"),
    )


def build(plan: Plan, model: Model, b: Buffers, logits: F32) -> None:
    """Add the forward pass to *plan*: `x` holds embeddings, *logits* ``[T - head, V]`` come out."""
    c = model.config
    w = model.weights
    for i in range(c.n_layers):
        block = f"blk.{i}"
        heads = Heads(
            qkv=b.qkv,
            cos=model.cos,
            sin=model.sin,
            k_cache=model.cache.keys[i],
            v_cache=model.cache.values[i],
            heads=c.n_heads,
            kv_heads=c.n_kv_heads,
            width=c.head_width,
            halves=model.rope is Rope.HALVES,
            scale=c.attention_scale,
        )
        before = b.out if i else None
        plan.norm(b.x, model.norms[f"{block}.attn_norm"], c.eps, b.to_attention, add=before)
        qkv = [w[f"{block}.attn_{name}"] for name in "qkv"]
        plan.matmul("attn_qkv", b.to_attention, qkv, b.qkv)
        plan.attend(heads, b.attended)
        plan.matmul("attn_output", b.attended, [w[f"{block}.attn_output"]], b.out)
        plan.norm(b.x, model.norms[f"{block}.ffn_norm"], c.eps, b.to_ffn, add=b.out)
        gate_up = [w[f"{block}.ffn_gate"], w[f"{block}.ffn_up"]]
        plan.matmul("ffn_gate_up", b.to_ffn, gate_up, b.gate_up)
        plan.silu(b.gate_up, b.active)
        plan.matmul("ffn_down", b.active, [w[f"{block}.ffn_down"]], b.out)
    plan.norm(b.x, model.norms["output_norm"], c.eps, b.to_output, add=b.out, from_head=True)
    plan.matmul("output", b.to_output, [w["output"]], logits, head=True)
