"""A layer without attention: projections, a short convolution and a gated delta net.

Source: llama.cpp src/models/qwen35.cpp, qwen3next.cpp (tensors and their rows), MIT; the equations
are in cpu/delta__vec.c.
"""

from collections.abc import Iterator

import numpy as np

from npurt.cpu.engine import Input, empty
from npurt.cpu.program import Convolution
from npurt.device import F32, DeltaNet
from npurt.llm.arch.architecture import Expected, Model, Shapes, Source
from npurt.llm.config import Config, DeltaHeads
from npurt.runtime.plan import Plan

LENGTH_EPS = 1e-6  # of q and k, whatever the norms have: transformers l2norm()


def heads_of(config: Config) -> DeltaHeads:
    """Return the delta net's heads of a *config* that has some."""
    assert config.delta is not None, "a recurrent layer without a delta net"
    return config.delta


def tensors(config: Config, shapes: Shapes, block: str) -> Iterator[tuple[str, Expected]]:
    """Yield the tensors of layer *block*.

    Beta and alpha may lie in one tensor, and q, k, v and z in another: see `sources`.
    """
    net, d = heads_of(config), config.width
    values, both = net.heads * net.width, 2 * net.heads
    if f"{block}.ssm_in.weight" in shapes:
        yield f"{block}.ssm_in.weight", Expected((net.channels + values, d))
    else:
        yield f"{block}.attn_qkv.weight", Expected((net.channels, d))
        yield f"{block}.attn_gate.weight", Expected((values, d))
    if f"{block}.ssm_ba.weight" in shapes:
        yield f"{block}.ssm_ba.weight", Expected((both, d))
    else:
        for name in ("ssm_beta", "ssm_alpha"):
            yield f"{block}.{name}.weight", Expected((net.heads, d))
    yield f"{block}.ssm_conv1d.weight", Expected((net.channels, net.taps), numbers=True)
    yield f"{block}.ssm_a", Expected((net.heads,))
    yield f"{block}.ssm_dt.bias", Expected((net.heads,))
    yield f"{block}.ssm_norm.weight", Expected((net.width,))
    yield f"{block}.ssm_out.weight", Expected((d, values))


def sources(config: Config, shapes: Shapes, block: str) -> Iterator[tuple[str, Source]]:
    """Yield the weights that are rows of another tensor, group by group of a key head.

    A group of ssm_ba is its betas, then its alphas; one of ssm_in its q, k, v and z.
    """
    net = heads_of(config)
    share = net.heads // net.k_heads
    if f"{block}.ssm_ba.weight" in shapes:
        groups = np.arange(2 * net.heads).reshape(net.k_heads, 2, share)
        for i, name in enumerate(("ssm_beta", "ssm_alpha")):
            yield f"{block}.{name}", Source(f"{block}.ssm_ba.weight", groups[:, i].reshape(-1))
    if f"{block}.ssm_in.weight" in shapes:
        size = 2 * net.width + 2 * share * net.width
        rows = np.arange(net.k_heads * size).reshape(net.k_heads, size)
        q, k, v, z = np.split(rows, np.cumsum([net.width, net.width, share * net.width]), axis=1)
        qkv = np.concatenate([part.reshape(-1) for part in (q, k, v)])
        yield f"{block}.attn_qkv", Source(f"{block}.ssm_in.weight", qkv)
        yield f"{block}.attn_gate", Source(f"{block}.ssm_in.weight", z.reshape(-1))


class DeltaLayer:
    """The activations of a delta net, used by every layer that has one."""

    def __init__(self, model: Model) -> None:
        net, rows = heads_of(model.config), model.rows
        values = net.heads * net.width
        self._model = model
        self._mixed = empty(rows, net.channels + values)
        self._gates = empty(rows, 2 * net.heads)
        self._convolved = empty(rows, net.channels)
        self._out_gates = empty(rows, 2 * net.heads)
        self._read = empty(rows, values)
        self._gated = model.input(values, "ssm_out")

    def add(self, plan: Plan, layer: int, x: Input, out: F32) -> None:
        """Add the delta net of *layer* over *x* to *plan*."""
        model, net, block = self._model, heads_of(self._model.config), f"blk.{layer}"
        recurrent = model.state.recurrent
        assert recurrent is not None, "a recurrent layer without its state"
        weights, numbers = model.weights, model.numbers
        projections = [weights[f"{block}.attn_qkv"], weights[f"{block}.attn_gate"]]
        gates = [weights[f"{block}.ssm_beta"], weights[f"{block}.ssm_alpha"]]
        plan.matmul("attn_qkv", x, projections, self._mixed)
        plan.matmul("delta_gates", x, gates, self._gates)
        conv = Convolution(
            x=self._mixed,
            gates=self._gates,
            weight=np.ascontiguousarray(numbers[f"{block}.ssm_conv1d"].T),
            rate=numbers[f"{block}.ssm_a"],
            bias=numbers[f"{block}.ssm_dt.bias"],
            kept=recurrent.kept[layer],
            out=self._convolved,
            out_gates=self._out_gates,
            heads=net.heads,
            k_heads=net.k_heads,
            width=net.width,
            eps=LENGTH_EPS,
        )
        slots = recurrent.states[layer]
        plan.delta(conv, self._net(slots.array[0]), slots, recurrent.control, model.device)
        plan.gated_norm(
            self._read,
            self._mixed[:, net.channels :],
            numbers[f"{block}.ssm_norm"],
            model.config.eps,
            self._gated,
        )
        plan.matmul("ssm_out", self._gated, [weights[f"{block}.ssm_out"]], out)

    def _net(self, state: F32) -> DeltaNet:
        """Return the net over what the convolution gives; one sequence."""
        net, layout = heads_of(self._model.config), self._model.architecture.delta
        assert layout is not None, "a delta net in an architecture without"
        heads = self._convolved.reshape(1, len(self._convolved), -1, net.width)
        q, k, v = np.split(heads, [net.k_heads, 2 * net.k_heads], axis=2)
        beta, decay = np.split(self._out_gates[None], 2, axis=2)
        return DeltaNet(
            q=q,
            k=k,
            v=v,
            decay=decay[..., None],
            beta=beta,
            out=self._read.reshape(v.shape),
            state=state,
            scale=net.width**-0.5,
            grouped=layout.grouped,
        )
