"""Causal grouped-query attention: q, k and v of a layer, its heads, and what they make of them."""

from collections.abc import Iterator

from npurt.cpu.engine import Input, empty
from npurt.cpu.program import Heads
from npurt.device import F32
from npurt.llm.arch.architecture import Architecture, Expected, Model, Rope, Shapes
from npurt.llm.config import Config
from npurt.runtime.plan import Plan

QKV = ("attn_q", "attn_k", "attn_v", "attn_qkv")


def tensors(
    arch: Architecture, config: Config, shapes: Shapes, block: str
) -> Iterator[tuple[str, Expected]]:
    """Yield the tensors of layer *block*; q, k and v may lie one below the other in attn_qkv."""
    d, w = config.width, config.head_width
    q, kv = config.n_heads * w, config.n_kv_heads * w
    fused = f"{block}.attn_qkv.weight" in shapes
    have = shapes.get(f"{block}.attn_qkv.weight" if fused else f"{block}.attn_q.weight", (q,))[0]
    if arch.gated and have == 2 * q + (2 * kv if fused else 0):
        q *= 2
    rows = {"attn_qkv": q + 2 * kv} if fused else {"attn_q": q, "attn_k": kv, "attn_v": kv}
    for name, n in rows.items():
        yield f"{block}.{name}.weight", Expected((n, d))
        yield f"{block}.{name}.bias", Expected((n,), optional=True)
    yield f"{block}.attn_output.weight", Expected((d, config.n_heads * w))
    yield f"{block}.attn_output.bias", Expected((d,), optional=True)
    for name in ("attn_q_norm", "attn_k_norm") if arch.head_norms else ():
        yield f"{block}.{name}.weight", Expected((w,))


class Attention:
    """The activations of attention, used by every layer that has it."""

    def __init__(self, model: Model) -> None:
        config = model.config
        self._model = model
        self._heads = config.n_heads * config.head_width
        self._kv = 2 * config.n_kv_heads * config.head_width
        most = 2 * self._heads if model.architecture.gated else self._heads
        self._qkv = empty(model.rows, most + self._kv)
        self._attended = model.input(self._heads, "attn_output")

    def add(self, plan: Plan, layer: int, x: Input, out: F32) -> None:
        """Add the attention of *layer* over *x* to *plan*."""
        model, config, block = self._model, self._model.config, f"blk.{layer}"
        weights = [
            model.weights[n] for n in (f"{block}.{name}" for name in QKV) if n in model.weights
        ]
        columns = sum(w.packed.n for w in weights)
        qkv = self._qkv.reshape(-1)[: model.rows * columns].reshape(model.rows, columns)
        heads = Heads(
            qkv=qkv,
            cos=model.cos,
            sin=model.sin,
            k_cache=model.state.cache.keys[layer],
            v_cache=model.state.cache.values[layer],
            heads=config.n_heads,
            kv_heads=config.n_kv_heads,
            width=config.head_width,
            halves=model.architecture.rope is Rope.HALVES,
            scale=config.attention_scale,
            gated=columns == 2 * self._heads + self._kv,
            q_norm=model.numbers.get(f"{block}.attn_q_norm"),
            k_norm=model.numbers.get(f"{block}.attn_k_norm"),
            eps=config.eps,
        )
        plan.matmul("attn_qkv", x, weights, qkv)
        plan.attend(heads, self._attended)
        plan.matmul("attn_output", self._attended, [model.weights[f"{block}.attn_output"]], out)
