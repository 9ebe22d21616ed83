"""Compute the memory that a model needs, from the header of its file."""

from dataclasses import dataclass

from npurt.llm.arch.reading import configuration
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.session.setup import positions

F16_BYTES = 2  # bytes of an element of the KV cache, by default


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes that a model needs.  Python, its libraries and the vocabulary need 0.1 to 0.2 GB more.

    Attributes:
        weights: Bytes of all tensors in the file.
        kv_cache: Bytes of the KV cache for *positions* positions.
        positions: The number of positions.
    """

    weights: int
    kv_cache: int
    positions: int


def memory(file: MappedGGUF, n_ctx: int | None = None) -> int:
    """Return the bytes of weights and KV cache together; see `needs`."""
    found = needs(file, n_ctx)
    return found.weights + found.kv_cache


def needs(file: MappedGGUF, n_ctx: int | None = None) -> MemoryNeeds:
    """Return the memory of a model with a context of *n_ctx*, which has the default of `Llama`.

    Raises:
        ModelFormatError: npurt does not support the model.
    """
    _, config = configuration(file)
    layers = range(config.n_layers if config.causal else 0)  # an encoder caches nothing
    cached = sum(not (config.is_recurrent(i) or config.is_convolved(i)) for i in layers)
    per_position = 2 * config.n_kv_heads * config.head_width * F16_BYTES * cached
    count = positions(config, n_ctx)
    weights = sum(info.nbytes for info in file.tensors.values())
    return MemoryNeeds(weights, count * per_position, count)
