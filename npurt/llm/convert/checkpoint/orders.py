"""Rows and columns of GGUF that come in another order than in the checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.llm.convert.checkpoint.settings import Settings

Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """The order in GGUF.

    Attributes:
        size: Rows (or columns) of the tensor in the checkpoint.
        indices: Which of them the tensor of GGUF has, in its order.
        axis: 0 for rows, 1 for columns.
    """

    size: int
    indices: Indices
    axis: int = 0


Orders = Mapping[str, Order]  # name in a block of GGUF -> the order of its rows or columns


def unchanged(settings: Settings) -> Orders:
    """Return no orders: all tensors are as in the checkpoint."""
    del settings
    return {}


def permuted(settings: Settings) -> Orders:
    """Return the orders of q and k whose rotary halves become adjacent pairs."""
    width = settings.head_width
    return {
        name: Order(count * width, interleaved(count * width, count))
        for name, count in (("attn_q", settings.heads), ("attn_k", settings.kv_heads))
    }


def interleaved(rows: int, heads: int) -> Indices:
    """Return which row of q or k comes where, so that the halves of a head are adjacent pairs."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
