"""From a GGUF file to its configuration and graph."""

from collections.abc import Collection
from dataclasses import dataclass

from npurt.device import F32
from npurt.llm import arch
from npurt.llm.arch import forward
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.config import Config, read_config
from npurt.llm.gguf import GGUF


@dataclass(frozen=True, slots=True)
class Description:
    """What a file says of its model."""

    architecture: Architecture
    config: Config
    divisors: F32 | None  # of the rotary frequencies

    def graph(self, file: GGUF, captured: Collection[int] = ()) -> ModelGraph:
        """Return the graph; see `forward.build`."""
        return forward.build(self.architecture, self.config, file.tensors, self.divisors, captured)


def describe(file: GGUF, *, to_run: bool = True) -> Description:
    """Read and check the configuration of *file*.

    Args:
        to_run: Refuse architectures of which only the graph is known.

    Raises:
        ModelFormatError: npurt does not run it, or it contradicts itself.
    """
    architecture = arch.find(file.architecture, to_run=to_run)
    embedding = file.tensors.get(EMBEDDING)
    n_vocab = embedding.shape[0] if embedding else 1
    config = architecture.complete(read_config(file.metadata, n_vocab))
    forward.check(architecture, config)
    name = next((n for n in forward.DIVISORS if n in file), None)
    return Description(architecture, config, file[name].dequantize() if name else None)
