"""Build and run the graph of a post-norm encoder, from token ids to hidden states."""

from collections.abc import Mapping, Sequence

import numpy as np

from npurt.device.device import F32
from npurt.graph.ops import Pairing
from npurt.graph.rows import Rows
from npurt.graph.tensor import Dim, Tensor
from npurt.llm.arch import blocks
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.forward import CLASSIFIER
from npurt.llm.arch.model_builder import FileTensor, ModelBuilder, ModelGraph
from npurt.llm.arch.rope import frequencies
from npurt.llm.file.config import Config
from npurt.runtime.execute.executor import Executor

OUTPUT, POSITIONS, TYPES = "hidden", "positions", "types"  # names of the graph's output and inputs


def build(arch: Architecture, config: Config, tensors: Mapping[str, FileTensor]) -> ModelGraph:
    """Return the graph of an encoder.

    Its inputs are ``tokens``; ``positions``, if the architecture has learned positions; and
    ``types``, the index of each token's segment, if the file has an embedding of segments.

    Args:
        arch: The conventions of the architecture.
        config: The dimensions of the model.
        tensors: The tensors of the file by name.

    Raises:
        ModelFormatError: The file lacks tensors or has unknown ones, or a shape does not match.
    """
    assert arch.encoder is not None, "a decoder"
    b = ModelBuilder(arch.name, tensors)
    d = Dim("D", config.width)
    x = b.embedding("embedding", b.tokens(), b.weight(EMBEDDING, Dim("V", config.n_vocab), d))
    if b.has("token_types.weight"):
        stored = b.shape("token_types.weight")  # one segment type: the file may have a vector
        rows = b.weight("token_types.weight", Dim("S", stored[0] if len(stored) > 1 else 1), d)
        x = b.add("typed", x, b.embedding("token_types", b.indices(TYPES), rows))
    if arch.encoder.positions:
        rows = b.weight("position_embd.weight", Dim("P", config.n_context), d)
        x = b.add("placed", x, b.embedding("position_embd", b.indices(POSITIONS), rows))
    x = _norm(b, "token_embd_norm", x, config)
    rates = None if arch.encoder.positions else b.values("rope", frequencies(config)[0])
    for i in range(config.n_layers):
        block = f"blk.{i}"
        mixed = _attention(b, arch, config, block, x, rates)
        x = _norm(b, f"{block}.attn_output_norm", b.add(f"{block}.mixed", x, mixed), config)
        out = _feed_forward(b, arch, config, block, x)
        x = _norm(b, f"{block}.layer_output_norm", b.add(f"{block}.sum", x, out), config)
    b.output(x, OUTPUT)
    return b.finish([CLASSIFIER])


def _norm(b: ModelBuilder, name: str, x: Tensor, config: Config) -> Tensor:
    weight, bias = b.vector(f"{name}.weight", x.shape[-1]), b.bias(f"{name}.bias", x.shape[-1])
    return b.layer_norm(name, x, weight, bias, config.eps)


def _attention(
    b: ModelBuilder,
    arch: Architecture,
    config: Config,
    block: str,
    x: Tensor,
    rates: Tensor | None,
) -> Tensor:
    """Add attention of all rows of a sequence to each other, and its output projection."""
    heads, kv_heads = config.n_heads, config.n_kv_heads
    q, k, v, _ = blocks.qkv(b, arch, config, block, x)
    if rates is not None:
        q = b.rope(f"{block}.q_rope", q, rates, heads, Pairing.HALVES)
        k = b.rope(f"{block}.k_rope", k, rates, kv_heads, Pairing.HALVES)
    out = b.encoder_attention(
        f"{block}.attention", (q, k, v), heads, kv_heads, config.attention_scale
    )
    return b.linear(f"{block}.attn_output", out, x.shape[-1])


def _feed_forward(
    b: ModelBuilder, arch: Architecture, config: Config, block: str, x: Tensor
) -> Tensor:
    assert arch.encoder is not None, "a decoder"
    if arch.encoder.gated:
        return blocks.feed_forward(b, arch.unit, block, x, config.n_ff)
    up = b.linear(f"{block}.ffn_up", x, Dim("F", config.n_ff), "ffn_up")
    active = b.gated_unit(f"{block}.ffn_active", up, None, arch.unit.activation)
    return b.linear(f"{block}.ffn_down", active, x.shape[-1], "ffn_down", blocks.BLOCK8)


class Encoder:
    """An encoder's graph in an executor."""

    def __init__(self, model: ModelGraph, executor: Executor) -> None:
        self._inputs = {tensor.name for op in model.graph.ops for tensor in op.reads}
        self._executor = executor

    def run(self, ids: Sequence[int], types: Sequence[int] | None = None) -> F32:
        """Return the hidden states of a sequence, float32 ``[T, D]``.

        Args:
            types: The segment index of each token, from 0; None puts all tokens in segment 0.
        """
        return self.run_together([(ids, types)])[0]

    def run_together(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int] | None]]
    ) -> list[F32]:
        """Return the hidden states of each of several sequences, evaluated in one run.

        Args:
            sequences: The ids and the types of each sequence, as for `run`.
        """
        sizes = [len(ids) for ids, _ in sequences]
        positions = np.concatenate([np.arange(size) for size in sizes])
        segments = [np.zeros(len(ids), int) if types is None else types for ids, types in sequences]
        given = {
            "tokens": np.concatenate([ids for ids, _ in sequences]).astype(np.int32),
            POSITIONS: positions.astype(np.int32),
            TYPES: np.concatenate(segments).astype(np.int32),
        }
        inputs = {name: values for name, values in given.items() if name in self._inputs}
        rows = Rows(
            np.repeat(np.arange(len(sequences)), sizes), positions, np.ones(len(positions), bool)
        )
        made = None
        while made is None:  # None: a device failed; the next run uses the fallback device
            made = self._executor.run(inputs, rows)
        for sequence in range(len(sequences)):
            self._executor.forget(sequence)
        return np.split(made[OUTPUT], np.cumsum(sizes)[:-1])
