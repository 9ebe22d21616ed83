"""What is known of a model before its weights are loaded: description, graph, sizes."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from npurt.errors import ModelFormatError, SettingError
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.arch.reading import Description, describe
from npurt.llm.file.adapter import Adapter
from npurt.llm.file.config import Config, require_context
from npurt.llm.file.gguf import GGUF
from npurt.llm.state.state import require_positions
from npurt.llm.text.vocabulary import token_texts
from npurt.segment import Limits

USUAL_CONTEXT = 4096  # the most positions by default


def positions(config: Config, n_ctx: int | None) -> int:
    """Return the positions that *n_ctx* asks for; None: the usual number; 0: as in training."""
    return n_ctx or min(config.n_context, USUAL_CONTEXT if n_ctx is None else config.n_context)


@dataclass(frozen=True, slots=True)
class Setup:
    """A model as its file describes it, for contexts of one size.

    Attributes:
        graph: The graph for contexts of that size.
        limits: Rows of a run, positions of a context, element type of the KV cache.
        captured: Layers whose inputs are outputs of the graph.
    """

    description: Description
    graph: ModelGraph
    limits: Limits
    captured: tuple[int, ...] = ()

    def capturing(self, layers: Sequence[int]) -> "Setup":
        """Return the same with the inputs of *layers* as outputs of the graph."""
        graph = self.description.graph(self.limits.positions, layers)
        return replace(self, graph=graph, captured=tuple(layers))


def set_up(
    file: GGUF,
    n_ctx: int | None,
    n_batch: int,
    kv_type: str,
    adapters: Sequence[Adapter] = (),
    *,
    sequences: int = 1,
    kv_bytes: int | None = None,
) -> Setup:
    """Read and check what *file* says of its model; arguments are those of `Llama`.

    Contexts of *sequences* texts can be open at a time, with *kv_bytes* of keys and values.

    It warns the caller of the caller when *n_ctx* is more than the model was trained for.

    Raises:
        ModelFormatError: npurt does not run the model, or not with such a context or adapter.
        SettingError: *n_ctx* is out of range, or *kv_type* is unknown.
    """
    description = describe(file, adapters)
    config = description.config
    count = positions(config, n_ctx)
    if not config.causal:
        count = _one_run(config, n_ctx, count, n_batch)
    graph = description.graph(count)
    if not graph.windows:
        require_context(file.metadata, count)
    require_positions(count, kv_type)
    if count > config.n_context:
        warnings.warn(
            f"a context of {count} tokens is more than the {config.n_context} that "
            f"{file.path.name} was trained for: text beyond them may make no sense",
            stacklevel=3,
        )
    _check_vocabulary(file, config)
    rows = min(n_batch, count)
    if not config.causal:
        sequences = rows  # texts share a run
    limits = Limits(rows, count, sequences, kv_dtype=kv_type, kv_bytes=kv_bytes)
    return Setup(description, graph, limits)


def _one_run(config: Config, n_ctx: int | None, count: int, n_batch: int) -> int:
    """Return the positions of an encoder, which reads a text in one run.

    Raises:
        SettingError: *n_ctx* asks for more than a run has, or than the model has.
    """
    most = min(n_batch, config.n_context)
    if n_ctx and count > most:
        raise SettingError(
            f"n_ctx is {n_ctx}, and this encoder reads texts of at most {most} tokens: all of a "
            "text in one run",
            remedy=f"leave n_ctx (-c) out, or use at most {most}",
        )
    return min(count, most)


def _check_vocabulary(file: GGUF, config: Config) -> None:
    """Refuse a vocabulary without embeddings before memory is spent on it."""
    count = len(token_texts(file.metadata))
    if count != config.n_vocab:
        raise ModelFormatError(
            f"the vocabulary has {count} tokens, the embedding {config.n_vocab} rows",
            remedy="convert the model to GGUF again; its metadata and tensors disagree",
        )
