"""Drafts from a network that fills in a block of tokens at once, and reads what its target sees."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npurt.device import F32
from npurt.llm.gguf import GGUF
from npurt.llm.spec.assistant import require_same_vocabulary
from npurt.llm.spec.dflash import NAME, Network
from npurt.llm.spec.drafter import Drafter

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
        self._head = target.head(network.output_norm, network.shape.config.eps)

    def prepare(self, history: Sequence[int]) -> None:
        """Read what the target made of the prompt."""
        del history
        self._taps.flush()

    def propose(self, history: Sequence[int], most: int) -> list[int]:
        """Return up to *most* tokens, each the likeliest in its place.

        None where the target's stream is not that of *history*, as after `Llama.restore`.
        """
        shape, known = self._network.shape, len(history) - 1
        count = min(most, shape.block - 1, self._target.n_ctx - known - 1)
        if count < 1 or self._taps.tokens != list(history[:-1]):
            return []
        self._taps.flush()
        x = self._target.embed([history[-1], *[shape.mask] * count])
        with np.errstate(all="ignore"):  # a guess may be wrong
            filled = self._network.fill_in(x, known)[1:]
        if not np.isfinite(filled).all():
            return []
        return [int(token) for token in self._head(filled).argmax(axis=1)]

    def _read(self, streams: F32, position: int) -> None:
        with np.errstate(all="ignore"):
            self._network.inject(streams, position)
