"""The feed-forward part of a layer: one for all tokens, or a mixture of experts."""

from collections.abc import Iterator

import numpy as np

from npurt.cpu.engine import MAX_CHUNKS, SCRATCH_FLOATS, Input, empty
from npurt.cpu.program import GROUP, Routing
from npurt.device import F32
from npurt.llm.arch.architecture import Architecture, Expected, Model, Shapes
from npurt.llm.config import Config, Experts
from npurt.runtime.plan import Plan

INPUTS = (
    *("ffn_gate", "ffn_up", "ffn_gate_shexp", "ffn_up_shexp", "ffn_gate_inp"),
    *("ffn_gate_inp_shexp", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"),
)


def is_mixture(config: Config, shapes: Shapes, block: str) -> bool:
    """True when layer *block* has experts: where the file has some, not all layers need to."""
    return config.experts is not None and f"{block}.ffn_gate.weight" not in shapes


def dense_tensors(config: Config, block: str) -> Iterator[tuple[str, Expected]]:
    """Yield the tensors of a layer with one feed-forward part."""
    d, f = config.width, config.n_ff
    for name, n, k in (("ffn_gate", f, d), ("ffn_up", f, d), ("ffn_down", d, f)):
        yield f"{block}.{name}.weight", Expected((n, k))
        yield f"{block}.{name}.bias", Expected((n,), optional=True)


def experts_of(config: Config) -> Experts:
    """Return the experts of a *config* that has some."""
    assert config.experts is not None, "a mixture without experts"
    return config.experts


def mixture_tensors(
    arch: Architecture, config: Config, shapes: Shapes, block: str
) -> Iterator[tuple[str, Expected]]:
    """Yield the tensors of a layer with experts; gate and up may lie one below the other."""
    e, d = experts_of(config), config.width
    assert arch.mixture is not None, "experts in an architecture without"
    yield f"{block}.ffn_gate_inp.weight", Expected((e.count, d))
    if f"{block}.ffn_gate_up_exps.weight" in shapes:
        yield f"{block}.ffn_gate_up_exps.weight", Expected((e.count, 2 * e.n_ff, d))
    else:
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            yield f"{block}.{name}.weight", Expected((e.count, e.n_ff, d))
    yield f"{block}.ffn_down_exps.weight", Expected((e.count, d, e.n_ff))
    if arch.mixture.shared:
        yield f"{block}.ffn_gate_inp_shexp.weight", Expected((1, d))
        yield f"{block}.ffn_gate_shexp.weight", Expected((e.n_ff_shared, d))
        yield f"{block}.ffn_up_shexp.weight", Expected((e.n_ff_shared, d))
        yield f"{block}.ffn_down_shexp.weight", Expected((d, e.n_ff_shared))


def most_rows(config: Config) -> int:
    """Return how many rows a run may have, so that a chunk of experts' products fits scratch."""
    if config.experts is None:
        return SCRATCH_FLOATS
    columns = config.experts.count * max(2 * config.experts.n_ff, config.width)
    return max(1, SCRATCH_FLOATS // max(-(-columns // MAX_CHUNKS), 16 * 8))


class Dense:
    """The activations of one feed-forward part, used by every layer that has one."""

    def __init__(self, model: Model, n_ff: int, suffix: str = "") -> None:
        self._model = model
        self._suffix = suffix
        self._gate_up = empty(model.rows, 2 * n_ff)
        self._active = model.input(n_ff, f"ffn_down{suffix}")

    def add(self, plan: Plan, layer: int, x: Input, out: F32) -> None:
        """Add the feed-forward part of *layer* over *x* to *plan*."""
        names = [f"blk.{layer}.{name}{self._suffix}" for name in ("ffn_gate", "ffn_up", "ffn_down")]
        gate, up, down = (self._model.weights[name] for name in names)
        plan.matmul("ffn_gate_up", x, [gate, up], self._gate_up)
        plan.silu(self._gate_up, self._active)
        plan.matmul("ffn_down", self._active, [down], out)


class Routed:
    """The activations of a mixture, used by every layer that has one."""

    def __init__(self, model: Model) -> None:
        e, d, rows = experts_of(model.config), model.config.width, model.rows
        assert model.architecture.mixture is not None, "experts in an architecture without"
        self._model = model
        self._mixture = model.architecture.mixture
        self._scores = empty(rows, e.count + self._mixture.shared)
        self._routing = Routing(
            shares=empty(rows, e.used),
            places=empty(rows, e.used, np.int64),
            sources=empty(rows, e.used, np.int64).reshape(-1),
            groups=empty(1, min(e.count, rows * e.used), GROUP).reshape(-1),
            experts=e.count,
        )
        names = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps")
        self._copies = model.input(d, *names, fan=e.used)
        self._gate_up = empty(rows * e.used, 2 * e.n_ff)
        self._active = model.input(e.n_ff, "ffn_down_exps", fan=e.used)
        self._results = empty(rows * e.used, d)
        self._shared = Dense(model, e.n_ff_shared, "_shexp") if self._mixture.shared else None
        self._shared_result = empty(rows, d) if self._shared else None

    def add(self, plan: Plan, layer: int, x: Input, out: F32) -> None:
        """Add the mixture of *layer* over *x* to *plan*."""
        e, weights, block = experts_of(self._model.config), self._model.weights, f"blk.{layer}"
        names = ["ffn_gate_inp", *(["ffn_gate_inp_shexp"] if self._shared else [])]
        plan.matmul("route", x, [weights[f"{block}.{name}"] for name in names], self._scores)
        if self._shared and self._shared_result is not None:
            self._shared.add(plan, layer, x, self._shared_result)
        normed = self._mixture.normed if e.normed is None else e.normed
        plan.route(self._scores, x, self._routing, self._copies, normed=normed, scale=e.scale)
        fused = f"{block}.ffn_gate_up_exps" in weights
        names = ["ffn_gate_up_exps"] if fused else ["ffn_gate_exps", "ffn_up_exps"]
        stacks = [weights[f"{block}.{name}"] for name in names]
        plan.experts("ffn_gate_up", self._copies, stacks, self._gate_up, self._routing)
        plan.silu(self._gate_up, self._active, fan=e.used)
        down = [weights[f"{block}.ffn_down_exps"]]
        plan.experts("ffn_down", self._active, down, self._results, self._routing)
        gate = self._scores[:, e.count :] if self._shared else None
        plan.combine(self._results, self._routing, out, shared=self._shared_result, gate=gate)
