"""How much memory a model takes, from the header of its file alone."""

from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF
from npurt.llm.session.context import positions

F16_BYTES = 2  # of an element of the KV cache, by default


def memory(file: GGUF, n_ctx: int | None = None) -> int:
    """Return the bytes of the weights and of the KV cache for *n_ctx* positions.

    By default the context is that of `Llama`.  The interpreter, its libraries and the vocabulary
    come on top: some 200 MB (docs/models.md).

    Raises:
        ModelFormatError: npurt does not run the model.
    """
    config = describe(file).config
    layers = range(config.n_layers)
    cached = sum(not (config.is_recurrent(i) or config.is_convolved(i)) for i in layers)
    per_layer = 2 * config.n_kv_heads * config.head_width * F16_BYTES * positions(config, n_ctx)
    return sum(info.nbytes for info in file.tensors.values()) + cached * per_layer
