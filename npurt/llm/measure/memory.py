"""How much memory a model takes, from the header of its file alone."""

from dataclasses import dataclass

from npurt.llm.arch.reading import configuration
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.session.setup import positions

F16_BYTES = 2  # of an element of the KV cache, by default


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a model takes; Python, its libraries and the vocabulary take 0.1 to 0.2 GB more.

    Attributes:
        weights: All tensors, as the file has them.
        kv_cache: For *positions* positions.
    """

    weights: int
    kv_cache: int
    positions: int


def memory(file: MappedGGUF, n_ctx: int | None = None) -> int:
    """Return the bytes of the weights and of the KV cache.  Arguments and errors as `needs`."""
    found = needs(file, n_ctx)
    return found.weights + found.kv_cache


def needs(file: MappedGGUF, n_ctx: int | None = None) -> Memory:
    """Return what a model needs with a context of *n_ctx*, by default that of `Llama`.

    Raises:
        ModelFormatError: npurt does not run the model.
    """
    _, config = configuration(file)
    layers = range(config.n_layers if config.causal else 0)  # an encoder caches nothing
    cached = sum(not (config.is_recurrent(i) or config.is_convolved(i)) for i in layers)
    per_position = 2 * config.n_kv_heads * config.head_width * F16_BYTES * cached
    count = positions(config, n_ctx)
    weights = sum(info.nbytes for info in file.tensors.values())
    return Memory(weights, count * per_position, count)
