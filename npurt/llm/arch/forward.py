"""Build the graph of a pre-norm decoder's forward pass, from tokens to logits."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from npurt.device.device import F32
from npurt.errors import ModelFormatError
from npurt.graph.builder import Builder
from npurt.graph.graph import Graph
from npurt.graph.tensor import Dim, Tensor
from npurt.llm.arch import blocks
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.model_builder import FileTensor, ModelBuilder, ModelGraph
from npurt.llm.arch.rope import frequencies
from npurt.llm.file.config import Config, Scaling
from npurt.llm.file.conventions import Conventions
from npurt.llm.file.metadata import CONVERT_AGAIN

# Tensors that divide the rotary frequencies: the first for Llama 3's scaling, the others for
# longrope.
DIVISORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
CLASSIFIER = "cls."  # prefix of the tensors of a reranker's classifier, which reads hidden states


def check(arch: Architecture, config: Config) -> None:
    """Raise an error if *config* has a part that *arch* does not have.

    Raises:
        ModelFormatError: *config* has experts, delta nets or convolutions, and *arch* has none.
    """
    for what, has, knows in (
        ("experts", config.experts, arch.mixture),
        ("delta nets", config.delta, arch.delta),
        ("layers without heads", config.convolved, arch.convolution),
    ):
        if has and not knows:
            raise ModelFormatError(
                f"the metadata has {what}, but models of architecture {arch.name} have none",
                remedy=CONVERT_AGAIN,
            )


def build(
    arch: Architecture,
    config: Config,
    tensors: Mapping[str, FileTensor],
    divisors: F32 | None = None,
    captured: Collection[int] = (),
) -> ModelGraph:
    """Return the graph of a model.

    Args:
        arch: The conventions of the architecture.
        config: The dimensions of the model.
        tensors: The tensors of the file by name.
        divisors: The divisors of the rotary frequencies, or None if the file has none.
        captured: Layers whose input becomes an output of the graph, ``hidden.LAYER``.

    Raises:
        ModelFormatError: The file lacks tensors or has unknown ones, or a shape does not match.
    """
    b = ModelBuilder(arch.name, tensors)
    d, v = Dim("D", config.width), Dim("V", config.n_vocab)
    for name in DIVISORS:
        b.bias(name, Dim("R", config.rotated // 2))
    table = b.weight(EMBEDDING, v, d)
    b.require_fit()
    ropes = _ropes(b, config, divisors)
    x = b.embedding("embedding", b.tokens(), table, config.conventions.embedding_scale)
    for i in range(config.n_layers):
        x = _layer(b, arch, config, i, x, ropes, captured=i in captured)
    h = b.norm(arch.norms.output, b.select_rows("selected", x), config.eps)
    head = (
        b.weight("output.weight", v, d)
        if b.has("output.weight")
        else b.part("output.weight", table)
    )
    logits = b.matmul("output", h, head, b.bias("output.bias", v), "output", blocks.INT16)
    b.output(_capped(b, logits, config.conventions), "logits")
    return b.finish([CLASSIFIER, *(f"blk.{config.n_layers + i}." for i in range(config.n_ahead))])


def _layer(
    b: ModelBuilder,
    arch: Architecture,
    config: Config,
    i: int,
    x: Tensor,
    ropes: blocks.Ropes,
    *,
    captured: bool,
) -> Tensor:
    """Add layer *i*, whose input is the residual stream *x*; return the stream after the layer."""
    block, norms, scale = f"blk.{i}", arch.norms, config.conventions.residual_scale

    def norm(name: str | None, value: Tensor) -> Tensor:
        return b.norm(f"{block}.{name}", value, config.eps) if name else value

    h = norm(norms.before_mixer, x)
    if captured:  # copied after the norm, so that the norm can be fused with the sum before it
        b.copy(f"hidden.{i}", x)
    if config.is_recurrent(i):
        mixed = blocks.delta_net(b, arch, config, block, h)
    elif config.is_convolved(i):
        mixed = blocks.short_convolution(b, config, block, h)
    else:
        mixed = blocks.attention(b, arch, config, i, h, ropes)
    x = b.add(f"{block}.mixed", x, norm(norms.after_mixer, mixed), scale)
    h = norm(norms.before_ffn, x)
    if config.experts is not None and b.has(f"{block}.ffn_gate_inp.weight"):
        out = blocks.mixture(b, arch, config, block, h)
    else:
        out = blocks.feed_forward(b, arch.unit, block, h, config.n_ff)
    return b.add(block, x, norm(norms.after_ffn, out), scale)


def _ropes(b: ModelBuilder, config: Config, divisors: F32 | None) -> blocks.Ropes:
    """Return a function from *local* to the rotary frequencies and the factor of cos and sin.

    Sliding-window layers (*local*) may have another rotary base.
    """
    made: dict[bool, tuple[Tensor, float]] = {}

    def ropes(*, local: bool) -> tuple[Tensor, float]:
        base = config.conventions.local_rope_base
        if local not in made and local and base is not None:
            rate, factor = frequencies(replace(config, rope_base=base, scaling=Scaling()))
            made[local] = b.values("rope.local", rate), factor
        elif local not in made:
            rate, factor = frequencies(config, divisors)
            made[local] = b.values("rope", rate), factor
        return made[local]

    return ropes


def _capped(b: Builder, logits: Tensor, conventions: Conventions) -> Tensor:
    if conventions.logit_scale != 1:
        logits = b.scale("scaled", logits, 1 / conventions.logit_scale)
    if conventions.logit_softcap:
        logits = b.softcap("capped", logits, conventions.logit_softcap)
    return logits


def head(
    name: str,
    weight: Tensor,
    norm: Tensor,
    bias: Tensor | None,
    eps: float,
    conventions: Conventions,
) -> Graph:
    """Return the graph of an output matrix, from the stream ``x`` ``[T, D]`` to ``logits``.

    Args:
        name: The name of the product, for reports.
        weight: The output matrix, or its first rows.
        norm: The weight of the norm before the output matrix.
        bias: The bias of the output matrix.
        eps: The epsilon of the norm.
        conventions: The scale and the cap of logits.
    """
    b = Builder(name)
    x = b.rms_norm("norm", b.input("x", weight.shape[-1]), norm, eps)
    logits = b.matmul(name, x, weight, bias, name, blocks.INT16)
    b.output(_capped(b, logits, conventions), "logits")
    return b.build()
