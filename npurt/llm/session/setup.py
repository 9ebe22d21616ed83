"""Read and check a model's description, graph and sizes, before its weights are loaded."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from npurt.base.threads import require_stack
from npurt.device.segment import Limits
from npurt.errors import ModelFormatError, SettingError
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.arch.reading import Description, describe
from npurt.llm.file.adapter import Adapter
from npurt.llm.file.config import Config, require_context
from npurt.llm.file.gguf import GGUF
from npurt.llm.state.state import require_positions
from npurt.llm.text.vocabulary import token_texts

USUAL_CONTEXT = 4096  # largest default context, in positions


def positions(config: Config, n_ctx: int | None) -> int:
    """Return the number of positions for the argument *n_ctx*.

    None stands for the context length from training, at most `USUAL_CONTEXT`; 0 for all of it.
    """
    return n_ctx or min(config.n_context, USUAL_CONTEXT if n_ctx is None else config.n_context)


@dataclass(frozen=True, slots=True)
class Setup:
    """The description of a model, with its graph for one context size.

    Attributes:
        description: The description of the model in its file.
        graph: The graph for contexts of that size.
        limits: The rows of a run, positions of a context, sequences, and type of the KV cache.
        captured: Indices of layers whose inputs the graph also outputs.
    """

    description: Description
    graph: ModelGraph
    limits: Limits
    captured: tuple[int, ...] = ()

    def capturing(self, layers: Sequence[int]) -> "Setup":
        """Return a copy whose graph also outputs the inputs of *layers*."""
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
    """Read and check the description of the model in *file*; arguments are those of `Llama`.

    *sequences* is the largest number of open contexts; *kv_bytes* are the bytes of their KV cache.
    A warning is issued if *n_ctx* exceeds the context length from training; its location is the
    caller of the caller.

    Raises:
        ModelFormatError: npurt does not support the model, this context size or an adapter.
        SettingError: *n_ctx* is out of range, *kv_type* is unknown, or threads have small stacks.
    """
    require_stack()
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
            f"a context of {count} tokens exceeds the {config.n_context} tokens of the training of "
            f"{file.path.name}: the model may generate nonsense beyond them",
            stacklevel=3,
        )
    _check_vocabulary(file, config)
    rows = min(n_batch, count)
    if not config.causal:
        sequences = rows  # several sequences share a run
    limits = Limits(rows, count, sequences, kv_dtype=kv_type, kv_bytes=kv_bytes)
    return Setup(description, graph, limits)


def _one_run(config: Config, n_ctx: int | None, count: int, n_batch: int) -> int:
    """Return the number of positions of an encoder, which evaluates a sequence in one run.

    Raises:
        SettingError: *n_ctx* exceeds the rows of a run, or the context length from training.
    """
    maximum = min(n_batch, config.n_context)
    if n_ctx and count > maximum:
        raise SettingError(
            f"n_ctx is {n_ctx}, but this encoder evaluates sequences of at most {maximum} tokens, "
            "each in one run",
            remedy=f"leave n_ctx (-c) out, or use at most {maximum}",
        )
    return min(count, maximum)


def _check_vocabulary(file: GGUF, config: Config) -> None:
    """Check that each token has an embedding, before memory is allocated.

    Raises:
        ModelFormatError: The numbers of tokens and of embeddings differ.
    """
    count = len(token_texts(file.metadata))
    if count != config.n_vocab:
        raise ModelFormatError(
            f"the vocabulary has {count} tokens, but the embedding has {config.n_vocab} rows",
            remedy="convert the model to GGUF again; its metadata and tensors disagree",
        )
