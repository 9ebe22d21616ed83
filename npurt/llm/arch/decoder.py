"""A model's graph and its output matrix, ready to run on the host and a device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npurt.cpu.bound import KV, Bound, Recurrence
from npurt.cpu.engine import empty
from npurt.cpu.lower import Lowering
from npurt.cpu.rotation import temperatures
from npurt.device import F32
from npurt.graph import ops
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.llm.arch import forward
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.file.config import Config
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import State
from npurt.runtime.execute.placement import Placed
from npurt.runtime.execute.plan import Plan


@dataclass(slots=True)
class Model:
    """Everything a plan is built from."""

    config: Config
    graph: ModelGraph
    weights: Mapping[str, Placed]  # matrices by name
    vectors: Mapping[str, F32]  # other weights by name
    rotations: Mapping[str, tuple[F32, F32]]  # cos and sin by name of the attention
    state: State
    rows: int  # most rows of one run

    def bound(self) -> Bound:
        """Return the graph's weights and states; layers with one kind of state follow in order."""
        state, listed = self.state, self.graph.graph.ops
        attentions = [op.name for op in listed if isinstance(op, ops.Attention)]
        nets = [op.name for op in listed if isinstance(op, ops.GatedDeltaNet)]
        cache, recurrent = state.cache, state.recurrent
        temperature = temperatures(self.config.conventions.temperature, cache.n_ctx)
        kv = {
            name: KV(cache.keys[layer], cache.values[layer], *self.rotations[name], temperature)
            for name, layer in zip(attentions, cache.keys, strict=True)
        }
        mixers = [op.name for op in listed if isinstance(op, ops.ShortConv)]
        convolved = (
            dict(zip(mixers, state.convolved.kept.values(), strict=True)) if state.convolved else {}
        )
        held = {
            name: Recurrence(recurrent.states[layer], recurrent.kept[layer], recurrent.control)
            for name, layer in (zip(nets, recurrent.states, strict=True) if recurrent else ())
            if recurrent
        }
        return Bound(self.weights, self.vectors, kv, held, self.rows, convolved)

    @property
    def output(self) -> ops.MatMul:
        """The product that makes the logits."""
        made = (op for op in self.graph.graph.ops if isinstance(op, ops.MatMul))
        return next(op for op in made if op.role == "output")


class Decoder:
    """The forward pass of a model in a plan.

    Args:
        embed: Returns the embeddings ``[T, D]`` of token ids.

    Attributes:
        rows: The most rows of a run.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        embed: Callable[[Sequence[int]], F32],
        hidden_states: HiddenStates | None = None,
    ) -> None:
        self.rows = model.rows
        self._plan, self._embed = plan, embed
        self.x: F32 = empty(model.rows, model.config.width)
        captures = hidden_states.captures() if hidden_states else {}
        lowering = Lowering(plan, model.graph.graph, model.bound(), {"embedding": self.x}, captures)
        lowering.add()
        plan.prepare()
        assert lowering.last_sum is not None, "a decoder without a residual stream"
        _, self._out, self._scale = lowering.last_sum

    def run(self, ids: Sequence[int], position: int, head: int, out: F32) -> None:
        """Run *ids* from *position* on; write the logits of rows from *head* on to *out*."""
        self.x[: len(ids)] = self._embed(ids)
        self._plan.run(len(ids), position, head, out)

    def replay(self, rows: int, position: int) -> None:
        """Run the delta nets alone: see `Plan.replay`."""
        self._plan.replay(rows, position)

    def stream(self, row: int) -> F32:
        """Return the residual stream ``[1, D]`` of *row* of the last run, if it had no logits.

        There, the norm before the output matrix has not yet added the last layer's part.
        """
        rows = slice(row, row + 1)
        added = float(np.float32(self._scale)) * self._out[rows].astype(np.float64)
        return (self.x[rows] + added).astype(np.float32)  # rounded once, as in the kernel


class Head:
    """The output matrix of a model, or its first rows, for a stream that comes from elsewhere.

    Args:
        plan: An empty one.
        op: The name of the product.
        columns: Logits that are wanted at least.
        norm: Weight of the norm before it, ``[D]``; by default the model's.
        eps: Of that norm; by default the model's.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        op: str,
        columns: int,
        norm: F32 | None = None,
        eps: float | None = None,
    ) -> None:
        output = model.output
        weight = model.weights[output.weight.name].first(columns)
        norm = model.vectors["output_norm.weight"] if norm is None else norm
        matrix = replace(output.weight, shape=(Dim("V", weight.packed.n), output.weight.shape[1]))
        graph = forward.head(
            op,
            matrix,
            Tensor("norm.weight", (matrix.shape[1],), kind=Kind.WEIGHT),
            None,  # of the placed weight
            model.config.eps if eps is None else eps,
            model.config.conventions,
        )
        self._x = empty(model.rows, model.config.width)
        self._logits = empty(1, weight.packed.n)
        self._plan = plan
        bound = replace(model.bound(), weights={matrix.name: weight}, vectors={"norm.weight": norm})
        Lowering(plan, graph, bound, {"x": self._x}).add()
        plan.prepare()

    def __call__(self, x: F32) -> F32:
        """Return the logits ``[T, columns]`` of rows ``[T, D]``; the next call overwrites them."""
        if len(x) > len(self._logits):
            self._logits = empty(len(x), self._logits.shape[1])
        self._x[: len(x)] = x
        logits = self._logits[: len(x)]
        self._plan.run(len(x), 0, 0, logits)
        return logits
