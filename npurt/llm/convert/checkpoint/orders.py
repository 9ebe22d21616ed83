"""Compute the orders of rows and columns that differ between GGUF and the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.llm.convert.checkpoint.settings import CheckpointSettings

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The order of a tensor's rows or columns in GGUF.

    Attributes:
        size: The number of rows or columns of the tensor in the checkpoint.
        indices: For each row or column of the GGUF tensor, its index in the checkpoint.
        axis: 0 for rows, 1 for columns.
    """

    size: int
    indices: Indices
    axis: int = 0


Orders = Mapping[str, Order]  # name in a block of GGUF -> the order of its rows or columns


def unchanged(settings: CheckpointSettings) -> Orders:
    """Return no orders, for models whose GGUF tensors have the order of the checkpoint."""
    del settings
    return {}


def permuted(settings: CheckpointSettings) -> Orders:
    """Return the orders of q and k that turn rotary halves into adjacent pairs."""
    width = settings.head_width
    return {
        name: Order(count * width, interleaved(count * width, count))
        for name, count in (("attn_q", settings.heads), ("attn_k", settings.kv_heads))
    }


def interleaved(rows: int, heads: int) -> Indices:
    """Return the row indices of q or k that turn the halves of each head into adjacent pairs."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
