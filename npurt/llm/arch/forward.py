"""The forward pass of a pre-norm decoder, as a graph: tokens in, logits out."""

from collections.abc import Mapping

from npurt.device import F32
from npurt.graph.tensor import Dim
from npurt.llm.arch import blocks, feedforward
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.model_builder import FileTensor, ModelBuilder, ModelGraph
from npurt.llm.config import Config
from npurt.llm.rope import frequencies


def build(
    arch: Architecture,
    config: Config,
    tensors: Mapping[str, FileTensor],
    divisors: F32 | None = None,
) -> ModelGraph:
    """Return the graph of a model.

    Args:
        arch: Its conventions.
        config: Its sizes.
        tensors: The tensors of the file by name.
        divisors: The tensor ``rope_freqs.weight``, if the file has it.

    Raises:
        ModelFormatError: The file lacks tensors, has unknown ones, or shapes do not fit.
    """
    b = ModelBuilder(arch.name, tensors)
    d, v = Dim("D", config.width), Dim("V", config.n_vocab)
    table = b.weight(EMBEDDING, v, d)
    rate, magnitude = frequencies(config, divisors)
    b.bias("rope_freqs.weight", Dim("R", config.rotated // 2))
    rope = b.values("rope", rate), magnitude
    x = b.embedding("embedding", b.tokens(), table)
    shapes = {name: info.shape for name, info in tensors.items()}
    for i in range(config.n_layers):
        block = f"blk.{i}"
        h = b.norm(f"{block}.attn_norm", x, config.eps)
        if config.is_recurrent(i):
            mixed = blocks.delta_net(b, arch, config, block, h)
        else:
            mixed = blocks.attention(b, arch, config, block, h, rope)
        x = b.add(f"{block}.mixed", x, mixed)
        h = b.norm(f"{block}.{arch.ffn_norm}", x, config.eps)
        if feedforward.is_mixture(config, shapes, block):
            out = blocks.mixture(b, arch, config, block, h)
        else:
            out = blocks.feed_forward(b, block, h, config.n_ff)
        x = b.add(block, x, out)
    h = b.norm("output_norm", b.select_rows("selected", x), config.eps)
    head = b.weight("output.weight", v, d) if b.has("output.weight") else b.part("output", table)
    bias = b.bias("output.bias", v)
    b.output(b.matmul("output", h, head, bias, "output", blocks.INT16), "logits")
    return b.finish(f"blk.{config.n_layers + i}." for i in range(config.n_ahead))
