"""Drafts from a network that fills in a block of tokens at once, and reads what its target sees."""

import contextlib
import functools
import os
import time
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from npurt.device import F32
from npurt.llm.file.gguf import GGUF
from npurt.llm.session.context import Context
from npurt.llm.spec.assistant import FEW, require_same_vocabulary
from npurt.llm.spec.dflash import NAME, Network
from npurt.llm.spec.drafter import Drafter, Guess, likeliest
from npurt.llm.spec.truncated_head import CutHead
from npurt.runtime.report.ledger import Row


def open_network(path: str | os.PathLike[str], target: Context) -> Network | None:
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

    def __init__(self, name: str, network: Network, target: Context) -> None:
        self.name = f"block draft {name}"
        assert target.taps is not None, "a target whose residual stream is not kept"
        self._network = network
        self._target = weakref.proxy(target)  # which has this drafter
        self._taps = target.taps
        self._row = target.account("draft_layers")
        self._taps.reader = functools.partial(_read, network, self._row)
        norm, eps, owner = network.output_norm, network.shape.config.eps, self._target
        self._head = CutHead(
            target, lambda columns: owner.head("draft_output", columns, norm=norm, eps=eps)
        )
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
        with _counted(self._row, len(x), self._network.fill_size):
            filled = self._network.fill_in(x, known)[1:]
        if not np.isfinite(filled).all():
            return
        yield from map(likeliest, self._head.fit(history)(filled))


def _read(network: Network, row: Row, streams: F32, position: int) -> None:
    with _counted(row, len(streams), network.read_size):
        network.inject(streams, position)


@contextlib.contextmanager
def _counted(row: Row, rows: int, size: int) -> Iterator[None]:
    """Put products of *rows* with *size* elements on account; any number may come out."""
    began = time.perf_counter()
    with np.errstate(all="ignore"):  # a guess may be wrong
        yield
    row.calls += 1
    row.rows += rows
    row.macs += rows * size
    row.nbytes += size * np.dtype(np.float32).itemsize
    row.seconds += time.perf_counter() - began
