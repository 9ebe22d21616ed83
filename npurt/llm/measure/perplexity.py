"""Measure the perplexity of a text, with the method of llama-perplexity.

The text is split into chunks of the context's length.  Each chunk is evaluated from an empty cache,
and begins with BOS if the model requires it.  The second half of each chunk is scored.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.errors import LayoutError, SettingError
from npurt.llm.decode.llama import Llama
from npurt.llm.session.progress import Progress

SHORTEST = 8  # minimum tokens of a chunk, for the standard error


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The exponential of the mean negative log-likelihood, and its standard error."""

    value: float
    error: float
    tokens: int
    chunks: int


def surprisals(logits: F32, targets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return -log p of each target ``[T]``, from logits ``[T, V]``, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    total = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]
    return np.asarray(total - wide[np.arange(len(targets)), targets])


def perplexity(
    llm: Llama,
    text: str,
    *,
    chunks: int | None = None,
    on_chunk: Callable[[Perplexity], object] | None = None,
) -> Perplexity:
    """Measure the perplexity of *text* in chunks of ``llm.n_ctx`` tokens.

    Args:
        chunks: The number of chunks to use; by default all.
        on_chunk: A function that is called after each chunk, with the perplexity so far.

    Raises:
        LayoutError: The text is shorter than one chunk.
        SettingError: *chunks* is below 1, or ``llm.n_ctx`` below 8.
    """
    if chunks is not None and chunks < 1:
        raise SettingError(f"{chunks} chunks cannot be measured", remedy="ask for at least 1")
    size = llm.n_ctx
    if size < SHORTEST:
        raise SettingError(
            f"chunks of {size} tokens are too short to measure",
            remedy=f"use a context (-c) of {SHORTEST} or more",
        )
    ids = llm.tokenize(text)
    count = len(ids) // size
    count = count if chunks is None else min(count, chunks)
    if count < 1:
        raise LayoutError(
            f"the text has {len(ids)} tokens, fewer than one chunk of {size}",
            remedy="use a longer text, or a shorter context (-c)",
        )
    scores = []
    with Progress("perplexity", count, "chunk") as bar:
        for start in range(0, count * size, size):
            chunk = ids[start : start + size]
            if llm.tokenizer.add_bos and llm.tokenizer.bos is not None:
                chunk[0] = llm.tokenizer.bos
            llm.reset()
            half = size // 2
            llm.eval_last(chunk[:half])
            scores.append(surprisals(llm.eval(chunk[half:-1]), np.asarray(chunk[half + 1 :])))
            bar.add(1)
            if on_chunk:
                on_chunk(_of(scores))
    return _of(scores)


def _of(scores: Sequence[npt.NDArray[np.float64]]) -> Perplexity:
    """Return the perplexity of the surprisals of some chunks."""
    every = np.concatenate(scores)
    value = math.exp(every.mean())
    error = value * float(every.std(ddof=1)) / math.sqrt(len(every))
    return Perplexity(value, error, len(every), len(scores))
