"""The network of a block-diffusion draft (DFlash), in numpy.

The network is a small transformer that fills in a block of masked tokens at once.  It uses the
target's embedding and output matrix.  For each token that the target has evaluated, the network
turns the target's residual streams into keys and values.  The tokens of a block attend to these,
and to all tokens of the block.
Sources: llama.cpp src/models/dflash.cpp and gguf-py constants (tensors, keys), MIT; z-lab/dflash
model.py (equations).
"""

import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from npurt.device.device import F32
from npurt.errors import ModelFormatError
from npurt.graph.sizes import SIZES
from npurt.graph.tensor import Dim
from npurt.llm.arch.model_builder import ModelBuilder
from npurt.llm.arch.rope import tables
from npurt.llm.file.config import Config, read_config, require_context
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.header import DAMAGED
from npurt.llm.file.metadata import CONVERT_AGAIN, INTEGERS, numbers, require

NAME = "dflash"  # general.architecture
VARIANTS = ("conv_", "selector_", "markov_", "confidence_", "log_snr_")  # keys of DFlash2, DSpark
READERS = ("fc", ".attn_k", ".attn_v")  # matrices for tokens that the target has evaluated
ANOTHER = "use a draft that was made for this very model"


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a draft, and the layers of its target that it reads."""

    config: Config
    block: int  # tokens of a block; the first one is known
    mask: int  # the id of the masked token
    layers: tuple[int, ...]  # indices of the target's layers whose inputs are read


def read_shape(file: GGUF, target: Config) -> Shape:
    """Read and check the metadata of the draft *file*.

    Raises:
        ModelFormatError: npurt does not support the draft, or it does not fit *target*.
    """
    metadata = file.metadata
    kind = [key for key in metadata if key.removeprefix(f"{NAME}.").startswith(VARIANTS)]
    if kind:
        raise ModelFormatError(
            f"{file.path.name} has {kind[0]}: npurt does not run this variant of DFlash drafts",
            remedy="use a draft of the first version, or a smaller model of the same family",
        )
    plain = {key: v for key, v in metadata.items() if key != f"{NAME}.attention.causal"}
    shape = Shape(
        config=read_config(plain, target.n_vocab),
        block=require(metadata, f"{NAME}.block_size", int),
        mask=require(metadata, "tokenizer.ggml.mask_token_id", int),
        layers=tuple(numbers(metadata, f"{NAME}.target_layers", INTEGERS).tolist()),
    )
    if shape.config.width != target.width:
        raise ModelFormatError(
            f"{file.path.name} is {shape.config.width} wide, but the model is {target.width} wide",
            remedy=ANOTHER,
        )
    if not shape.layers or not all(0 <= layer < target.n_layers for layer in shape.layers):
        raise ModelFormatError(
            f"{file.path.name} reads layers {list(shape.layers)} of a model that has "
            f"{target.n_layers}",
            remedy=ANOTHER,
        )
    if not (2 <= shape.block <= SIZES.rows and 0 <= shape.mask < target.n_vocab):
        raise ModelFormatError(
            f"{file.path.name} has an invalid block size, {shape.block}, or mask token, "
            f"{shape.mask}",
            remedy=CONVERT_AGAIN,
        )
    return shape


def check_tensors(file: GGUF, shape: Shape) -> tuple[str, ...]:
    """Check the tensors of a draft; return their names.

    Raises:
        ModelFormatError: A tensor is missing or unknown, or has another shape.
    """
    config = shape.config
    d, w, f = config.width, config.head_width, config.n_ff
    q, kv = config.n_heads * w, config.n_kv_heads * w
    table: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, len(shape.layers) * d),
        "enc.output_norm.weight": (d,),
        "output_norm.weight": (d,),
    }
    for i in range(config.n_layers):
        for name, size in (
            ("attn_norm", (d,)),
            ("attn_q", (q, d)),
            ("attn_k", (kv, d)),
            ("attn_v", (kv, d)),
            ("attn_q_norm", (w,)),
            ("attn_k_norm", (w,)),
            ("attn_output", (d, q)),
            ("ffn_norm", (d,)),
            ("ffn_gate", (f, d)),
            ("ffn_up", (f, d)),
            ("ffn_down", (d, f)),
        ):
            table[f"blk.{i}.{name}.weight"] = size
    builder = ModelBuilder(NAME, file.tensors)
    for name, axes in table.items():
        declare = builder.vector if len(axes) == 1 else builder.weight
        declare(name, *(Dim("N", n) for n in axes))
    builder.finish()
    return tuple(table)


class Network:
    """The float32 weights of a draft, and the keys and values for one sequence.

    Letters: T tokens, D width, H heads, G kv heads, W head width, P positions.

    Args:
        file: The draft.
        target: The configuration of the target.
        n_ctx: P.

    Attributes:
        identity: The identity of the draft's file; see `MappedGGUF.identity`.
        fill_size: Elements of the matrices that multiply a token of a block.
        read_size: Elements of the matrices that multiply a token of the target.

    Raises:
        ModelFormatError: See `read_shape`; or tensors are missing, unknown or damaged.
    """

    def __init__(self, file: GGUF, target: Config, n_ctx: int) -> None:
        self.identity = file.identity
        self.shape = read_shape(file, target)
        require_context(file.metadata, n_ctx)
        table = check_tensors(file, self.shape)
        config = self.shape.config
        self._numbers = {name.removesuffix(".weight"): _values(file, name) for name in table}
        sizes = {name: v.size for name, v in self._numbers.items() if v.ndim > 1}
        self.fill_size = sum(size for name, size in sizes.items() if name.startswith("blk."))
        self.read_size = sum(size for name, size in sizes.items() if name.endswith(READERS))
        self._cos, self._sin = tables(config, n_ctx)
        self._size = (config.n_layers, config.n_kv_heads, n_ctx, config.head_width)
        self._forget()

    def _forget(self) -> None:
        self._keys: F32 = np.empty(self._size, np.float32)
        self._values: F32 = np.empty(self._size, np.float32)

    def another(self) -> Self:
        """Return a network for another sequence, which shares the weights."""
        network = copy.copy(self)
        network._forget()
        return network

    @property
    def output_norm(self) -> F32:
        """The weight ``[D]`` of the norm before the target's output matrix."""
        return self._numbers["output_norm"]

    def inject(self, streams: F32, position: int) -> None:
        """Store the keys and values of the target's tokens from *position* on.

        *streams* are the target's residual streams, ``[T, layers * D]``.
        """
        mixed = streams @ self._numbers["fc"].T
        mixed = self._norm(mixed, "enc.output_norm")
        for layer in range(self.shape.config.n_layers):
            self._put(layer, mixed, position)

    def fill_in(self, x: F32, position: int) -> F32:
        """Return the block's output before the last norm, from its embeddings *x* ``[T, D]``.

        The block attends to itself, and to the injected tokens before *position*.
        """
        numbers = self._numbers
        for layer in range(self.shape.config.n_layers):
            block = f"blk.{layer}"
            x = x + self._attend(layer, self._norm(x, f"{block}.attn_norm"), position)
            normed = self._norm(x, f"{block}.ffn_norm")
            gate = normed @ numbers[f"{block}.ffn_gate"].T
            up = normed @ numbers[f"{block}.ffn_up"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ numbers[f"{block}.ffn_down"].T
        return x

    def _attend(self, layer: int, x: F32, position: int) -> F32:
        config, block = self.shape.config, f"blk.{layer}"
        rows, width, groups = len(x), config.head_width, config.n_kv_heads
        self._put(layer, x, position)  # temporary: `inject` overwrites these positions
        q = (x @ self._numbers[f"{block}.attn_q"].T).reshape(rows, -1, width)
        q = self._rotate(self._norm(q, f"{block}.attn_q_norm"), position)
        q = q.reshape(rows, groups, -1, width).swapaxes(0, 1).reshape(groups, -1, width)
        seen = slice(position + rows)
        q *= np.float32(config.attention_scale)
        scores: F32 = q @ self._keys[layer, :, seen].swapaxes(1, 2)
        scores -= scores.max(-1, keepdims=True)
        weights: F32 = np.exp(scores)
        weights /= weights.sum(-1, keepdims=True)
        read: F32 = weights @ self._values[layer, :, seen]
        heads = read.reshape(groups, rows, -1).swapaxes(0, 1).reshape(rows, -1)
        out: F32 = heads @ self._numbers[f"{block}.attn_output"].T
        return out

    def _put(self, layer: int, x: F32, position: int) -> None:
        """Write the keys and values of *x* ``[T, D]``, from *position* on."""
        block, here = f"blk.{layer}", slice(position, position + len(x))
        shape = (len(x), -1, self.shape.config.head_width)
        k = (x @ self._numbers[f"{block}.attn_k"].T).reshape(shape)
        k = self._rotate(self._norm(k, f"{block}.attn_k_norm"), position)
        v = (x @ self._numbers[f"{block}.attn_v"].T).reshape(shape)
        self._keys[layer, :, here] = k.swapaxes(0, 1)
        self._values[layer, :, here] = v.swapaxes(0, 1)

    def _norm(self, x: F32, name: str) -> F32:
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        root: F32 = np.sqrt(mean + np.float32(self.shape.config.eps))
        return x / root * self._numbers[name]

    def _rotate(self, heads: F32, position: int) -> F32:
        """Rotate the halves of heads ``[T, heads, W]`` of the tokens from *position* on."""
        half = self._cos.shape[1]
        cos = self._cos[position : position + len(heads), None]
        sin = self._sin[position : position + len(heads), None]
        a, b, rest = np.split(heads, [half, 2 * half], axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _values(file: GGUF, name: str) -> F32:
    values: F32 = np.array(
        file[name].dequantize(), np.float32
    )  # a copy, because the caller closes the file
    if not np.isfinite(values).all():
        raise ModelFormatError(f"{name} holds NaN or infinity", remedy=DAMAGED)
    return values
