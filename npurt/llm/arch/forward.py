"""The forward pass of a pre-norm decoder, as a graph: tokens in, logits out."""

from collections.abc import Collection, Mapping

from npurt.device import F32
from npurt.errors import ModelFormatError
from npurt.graph.builder import Builder
from npurt.graph.graph import Graph
from npurt.graph.tensor import Dim, Tensor
from npurt.llm.arch import blocks
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.model_builder import FileTensor, ModelBuilder, ModelGraph
from npurt.llm.config import Config
from npurt.llm.metadata import CONVERT_AGAIN
from npurt.llm.rope import frequencies


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


def build(
    arch: Architecture,
    config: Config,
    tensors: Mapping[str, FileTensor],
    divisors: F32 | None = None,
    captured: Collection[int] = (),
) -> ModelGraph:
    """Return the graph of a model.

    Args:
        arch: Its conventions.
        config: Its sizes.
        tensors: The tensors of the file by name.
        divisors: The tensor ``rope_freqs.weight``, if the file has it.
        captured: Layers whose input is an output of the graph, ``hidden.LAYER``.

    Raises:
        ModelFormatError: The file lacks tensors, has unknown ones, or shapes do not fit.
    """
    b = ModelBuilder(arch.name, tensors)
    d, v = Dim("D", config.width), Dim("V", config.n_vocab)
    b.bias("rope_freqs.weight", Dim("R", config.rotated // 2))
    table = b.weight(EMBEDDING, v, d)
    b.require_fit()
    rate, magnitude = frequencies(config, divisors)
    rope = b.values("rope", rate), magnitude
    x = b.embedding("embedding", b.tokens(), table)
    for i in range(config.n_layers):
        block = f"blk.{i}"
        h = b.norm(f"{block}.attn_norm", x, config.eps)
        if i in captured:
            b.copy(f"hidden.{i}", x)
        if config.is_recurrent(i):
            mixed = blocks.delta_net(b, arch, config, block, h)
        else:
            mixed = blocks.attention(b, arch, config, block, h, rope)
        x = b.add(f"{block}.mixed", x, mixed)
        h = b.norm(f"{block}.{arch.ffn_norm}", x, config.eps)
        if config.experts is not None and not b.has(f"{block}.ffn_gate.weight"):
            out = blocks.mixture(b, arch, config, block, h)
        else:
            out = blocks.feed_forward(b, block, h, config.n_ff)
        x = b.add(block, x, out)
    h = b.norm("output_norm", b.select_rows("selected", x), config.eps)
    head = b.weight("output.weight", v, d) if b.has("output.weight") else b.part("output", table)
    bias = b.bias("output.bias", v)
    b.output(b.matmul("output", h, head, bias, "output", blocks.INT16), "logits")
    return b.finish(f"blk.{config.n_layers + i}." for i in range(config.n_ahead))


def head(name: str, weight: Tensor, norm: Tensor, bias: Tensor | None, eps: float) -> Graph:
    """Return the graph of an output matrix: the stream ``x`` ``[T, D]`` in, ``logits`` out.

    Args:
        name: Of the product, for reports.
        weight: The output matrix, or its first rows.
        norm: The weight of the norm before it.
        bias: Of the output matrix.
        eps: Of the norm.
    """
    b = Builder(name)
    x = b.rms_norm("norm", b.input("x", weight.shape[-1]), norm, eps)
    b.output(b.matmul(name, x, weight, bias, name, blocks.INT16), "logits")
    return b.build()
