"""Draft a block of tokens at once from hidden states, with a DFlash network."""

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence

import numpy as np

from npurt.device.device import F32
from npurt.llm.file.gguf import GGUF
from npurt.llm.session.context import Context
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.session.setup import Setup
from npurt.llm.spec.assistant import FEW, require_same_vocabulary
from npurt.llm.spec.dflash import NAME, Network
from npurt.llm.spec.drafter import Drafter, DraftToken, likeliest
from npurt.llm.spec.truncated_head import TruncatedHead
from npurt.runtime.report.ledger import Row


def open_network(
    path: str | os.PathLike[str], target: Setup, *, progress: bool = True
) -> Network | None:
    """Return the network in the file *path*; None if the file has another architecture.

    Raises:
        ModelFormatError: npurt cannot run the network with *target*.
    """
    with GGUF(path, progress=progress) as file:
        if file.architecture != NAME:
            return None
        require_same_vocabulary(file, target.description.file)
        return Network(file, target.description.config, target.limits.positions)


class Diffusion(Drafter):
    """Drafts tokens with a DFlash network.

    Args:
        name: The name of the draft's file.
        network: The network.
        target: A context that captures the hidden states that *network* reads.
        head: The output matrix, if several sequences share it; None creates one.
    """

    at_once = True

    def __init__(
        self, name: str, network: Network, target: Context, head: TruncatedHead | None = None
    ) -> None:
        self.name = f"block draft {name}"
        assert target.hidden_states is not None, "the target captures no hidden states"
        model = target.model
        self._network = network
        self._target = target
        self._model = model
        self._hidden_states = target.hidden_states
        self._row = model.account("draft_layers")
        self._hidden_states.reader = functools.partial(_read, network, self._row)
        self._head = head or block_head(model, network)
        layers = network.fill_size * np.dtype(np.float32).itemsize
        self.share = (layers + self._head.nbytes) / model.weight_bytes

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens' hidden states `prepare` must read; 0 if few."""
        del history
        return self._hidden_states.unread if self._hidden_states.unread > FEW else 0

    def prepare(self, history: Sequence[int], maximum: int) -> None:
        """Read the captured hidden states that were not read yet."""
        del history, maximum
        self._hidden_states.flush()

    def draft(self, history: Sequence[int], maximum: int) -> Iterator[DraftToken]:
        """Yield up to *maximum* tokens, each the most probable one at its position.

        Nothing is yielded if the captured states are not those of *history*, as after
        `Llama.restore`.
        """
        shape, known = self._network.shape, len(history) - 1
        count = min(maximum, shape.block - 1, self._model.n_ctx - known - 1)
        if count < 1 or self._hidden_states.tokens != list(history[:-1]):
            return
        self._hidden_states.flush()
        x = self._model.token_embeddings([history[-1], *[shape.mask] * count])
        with _counted(self._row, len(x), self._network.fill_size):
            filled = self._network.fill_in(x, known)[1:]
        if not np.isfinite(filled).all():
            return
        yield from map(likeliest, self._head.fit(history)(filled))

    def release(self) -> None:
        """Release the keys and values of this sequence, and stop capturing hidden states."""
        self._target.drop_hidden_states()
        del self._network, self._hidden_states


def block_head(model: LoadedModel, network: Network) -> TruncatedHead:
    """Return the truncated output matrix of *model* with the last norm of *network*."""
    norm, eps = network.output_norm, network.shape.config.eps
    return TruncatedHead(
        model, lambda columns: model.head("draft_output", columns, norm=norm, eps=eps)
    )


def _read(network: Network, row: Row, streams: F32, position: int) -> None:
    with _counted(row, len(streams), network.read_size):
        network.inject(streams, position)


@contextlib.contextmanager
def _counted(row: Row, rows: int, size: int) -> Iterator[None]:
    """Add products of *rows* rows with *size* elements to the ledger; ignore overflows."""
    began = time.perf_counter()
    with np.errstate(all="ignore"):  # an overflow only makes the draft wrong
        yield
    row.calls += 1
    row.rows += rows
    row.macs += rows * size
    row.nbytes += size * np.dtype(np.float32).itemsize
    row.seconds += time.perf_counter() - began
