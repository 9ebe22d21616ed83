"""The pre-norm decoder that every architecture is: which tensors, in which order, into a plan."""

from npurt.cpu.engine import empty
from npurt.device import F32
from npurt.errors import ModelFormatError
from npurt.llm.arch import attention as attend
from npurt.llm.arch import delta, feedforward
from npurt.llm.arch.architecture import EMBEDDING, Architecture, Expected, Model, Shapes, Source
from npurt.llm.config import Config
from npurt.llm.metadata import CONVERT_AGAIN
from npurt.llm.taps import Taps
from npurt.runtime.plan import Plan


def check(arch: Architecture, config: Config) -> None:
    """Make sure that *config* has no parts that *arch* does not know.

    Raises:
        ModelFormatError: It has.
    """
    for what, has, knows in (
        ("experts", config.experts, arch.mixture),
        ("delta nets", config.delta, arch.delta),
    ):
        if has and not knows:
            raise ModelFormatError(
                f"the metadata has {what}, which models of architecture {arch.name} have not",
                remedy=CONVERT_AGAIN,
            )


def tensors(arch: Architecture, config: Config, shapes: Shapes) -> dict[str, Expected]:
    """Return every tensor of the architecture by name.

    Args:
        shapes: Of the tensors in the file: some things may be put down in more than one way.
    """
    d, v = config.width, config.n_vocab
    table = {
        EMBEDDING: Expected((v, d)),
        "output_norm.weight": Expected((d,)),
        "output.weight": Expected((v, d), optional=True),
        "output.bias": Expected((v,), optional=True),
        "rope_freqs.weight": Expected((config.rotated // 2,), optional=True),
    }
    for i in range(config.n_layers):
        block = f"blk.{i}"
        for norm in ("attn_norm", arch.ffn_norm):
            table[f"{block}.{norm}.weight"] = Expected((d,))
        if config.is_recurrent(i):
            table |= delta.tensors(config, shapes, block)
        else:
            table |= attend.tensors(arch, config, shapes, block)
        if feedforward.is_mixture(config, shapes, block):
            table |= feedforward.mixture_tensors(arch, config, shapes, block)
        else:
            table |= feedforward.dense_tensors(config, block)
    return table


def sources(config: Config, shapes: Shapes) -> dict[str, Source]:
    """Return the weights that are not a tensor of their own name: where they are."""
    found = {} if "output.weight" in shapes else {"output": Source(EMBEDDING)}
    for i in range(config.n_layers):
        if config.is_recurrent(i):
            found |= delta.sources(config, shapes, f"blk.{i}")
    return found


def ignored(config: Config) -> tuple[str, ...]:
    """Return what the names of tensors begin with that are not used: blocks that look ahead."""
    return tuple(f"blk.{config.n_layers + i}." for i in range(config.n_ahead))


class Decoder:
    """The activations of a model, and the ops between them.

    Attributes:
        x: ``[T, D]``, the residual stream: embeddings go in here.
    """

    def __init__(self, model: Model) -> None:
        config, rows = model.config, model.rows
        layers = range(config.n_layers)
        self._model = model
        self.x: F32 = empty(rows, config.width)
        self._out: F32 = empty(rows, config.width)  # what is added to x next
        mixers = (*attend.QKV, "attn_gate", "ssm_beta", "ssm_alpha")
        self._to_mixer = model.input(config.width, *mixers, fine=True)
        self._to_ffn = model.input(config.width, *feedforward.INPUTS)
        self._to_output = model.input(config.width, "output", fine=True)
        recurrent = {config.is_recurrent(i) for i in layers}
        self._mixers: dict[bool, attend.Attention | delta.DeltaLayer] = {}
        if False in recurrent:
            self._mixers[False] = attend.Attention(model)
        if True in recurrent:
            self._mixers[True] = delta.DeltaLayer(model)
        self._dense = feedforward.Dense(model, config.n_ff) if config.n_ff else None
        self._routed = feedforward.Routed(model) if config.experts else None

    def add(self, plan: Plan, logits: F32, taps: Taps | None = None) -> None:
        """Add the forward pass to *plan*: *logits* ``[T - head, V]`` come out.

        Args:
            taps: What is to be kept of the residual stream.
        """
        model, config, x, out = self._model, self._model.config, self.x, self._out
        numbers, before = model.numbers, None
        for i in range(config.n_layers):
            block = f"blk.{i}"
            plan.norm(x, numbers[f"{block}.attn_norm"], config.eps, self._to_mixer, add=before)
            if taps and i in taps.layers:
                plan.call(taps.keep(i, x))
            self._mixers[config.is_recurrent(i)].add(plan, i, self._to_mixer, out)
            norm = numbers[f"{block}.{model.architecture.ffn_norm}"]
            plan.norm(x, norm, config.eps, self._to_ffn, add=out)
            routed = f"{block}.ffn_gate_inp" in model.weights
            part = self._routed if routed else self._dense
            assert part is not None, "a layer without its feed-forward part"
            part.add(plan, i, self._to_ffn, out)
            before = out
        norm = numbers["output_norm"]
        plan.norm(x, norm, config.eps, self._to_output, add=before, from_head=True)
        plan.matmul("output", self._to_output, [model.weights["output"]], logits, head=True)

    def stream(self, row: int) -> F32:
        """Return the residual stream ``[1, D]`` of *row* of the last run, if it had no logits.

        There, the norm before the output matrix has not yet added the last layer's part.
        """
        rows = slice(row, row + 1)
        return self.x[rows] + self._out[rows]


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
        weight = model.weights["output"].first(columns)
        norm = model.numbers["output_norm"] if norm is None else norm
        normed = model.input(model.config.width, "output", fine=True)
        self._x = empty(model.rows, model.config.width)
        self._logits = empty(1, weight.packed.n)
        self._plan = plan
        plan.norm(self._x, norm, model.config.eps if eps is None else eps, normed)
        plan.matmul(op, normed, [weight], self._logits, head=True)
        plan.prepare()

    def __call__(self, x: F32) -> F32:
        """Return the logits ``[T, columns]`` of rows ``[T, D]``; the next call overwrites them."""
        if len(x) > len(self._logits):
            self._logits = empty(len(x), self._logits.shape[1])
        self._x[: len(x)] = x
        logits = self._logits[: len(x)]
        self._plan.run(len(x), 0, 0, logits)
        return logits
