"""Drafts from a network that fills in a block of tokens at once, and reads what its target sees."""

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npurt.device import F32
from npurt.llm.gguf import GGUF
from npurt.llm.spec.assistant import FEW, require_same_vocabulary
from npurt.llm.spec.cut import CutHead
from npurt.llm.spec.dflash import NAME, Network
from npurt.llm.spec.drafter import Drafter, Guess, likeliest

if TYPE_CHECKING:
    from npurt.llm.context import Context


def open_network(path: str | os.PathLike[str], target: "Context") -> Network | None:
    """Return the network in the file *path*; None when that is a model of another architecture.

    Raises:
        ModelFormatError: It is none that npurt can run with *target*.
    """
    with GGUF(path) as file:
        if file.architecture != NAME:
            return None
        require_same_vocabulary(file, target.file)
        return Network(file, target.config, target.n_ctx)


class Diffusion(Drafter):
    """Guesses what a DFlash network fills in after the text.

    Args:
        name: Of the draft's file.
        network: The network.
        target: The model, whose taps are those of *network*.
    """

    at_once = True

    def __init__(self, name: str, network: Network, target: "Context") -> None:
        self.name = f"block draft {name}"
        assert target.taps is not None, "a target whose residual stream is not kept"
        self._network = network
        self._target = target
        self._taps = target.taps
        self._taps.reader = self._read
        self._row = target.account("draft_layers")
        norm, eps = network.output_norm, network.shape.config.eps
        make = functools.partial(target.head, "draft_output", norm=norm, eps=eps)
        self._head = CutHead(target, make)
        layers = network.fill_size * np.dtype(np.float32).itemsize
        self.share = (layers + self._head.nbytes) / target.weight_bytes

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens' streams must be read first; 0 if few."""
        del history
        return self._taps.unread if self._taps.unread > FEW else 0

    def prepare(self, history: Sequence[int]) -> None:
        """Read what the target made of the tokens that were not read."""
        del history
        self._taps.flush()

    def guesses(self, history: Sequence[int], most: int) -> Iterator[Guess]:
        """Yield up to *most* tokens, each the likeliest in its place.

        None where the target's stream is not that of *history*, as after `Llama.restore`.
        """
        shape, known = self._network.shape, len(history) - 1
        count = min(most, shape.block - 1, self._target.n_ctx - known - 1)
        if count < 1 or self._taps.tokens != list(history[:-1]):
            return
        self._taps.flush()
        x = self._target.embed([history[-1], *[shape.mask] * count])
        with self._counted(len(x), self._network.fill_size):
            filled = self._network.fill_in(x, known)[1:]
        if not np.isfinite(filled).all():
            return
        yield from map(likeliest, self._head.fit(history)(filled))

    def _read(self, streams: F32, position: int) -> None:
        with self._counted(len(streams), self._network.read_size):
            self._network.inject(streams, position)

    @contextlib.contextmanager
    def _counted(self, rows: int, size: int) -> Iterator[None]:
        """Put products of *rows* with *size* elements on account; any number may come out."""
        began = time.perf_counter()
        with np.errstate(all="ignore"):  # a guess may be wrong
            yield
        self._row.calls += 1
        self._row.rows += rows
        self._row.macs += rows * size
        self._row.nbytes += size * np.dtype(np.float32).itemsize
        self._row.seconds += time.perf_counter() - began
