"""Read the configuration of a GGUF file and build its graph."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from npurt.device.device import F32
from npurt.errors import ModelFormatError, UnsupportedOp
from npurt.llm.arch import encoder, families, forward
from npurt.llm.arch.adapters import adapted, require_architecture
from npurt.llm.arch.architecture import EMBEDDING, Architecture
from npurt.llm.arch.model_builder import ModelGraph
from npurt.llm.file.adapter import Adapter
from npurt.llm.file.config import Config, read_config
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.file.metadata import CONVERT_AGAIN


@dataclass(frozen=True, slots=True)
class Description:
    """A GGUF file with its architecture, its checked configuration and its adapters."""

    file: GGUF
    architecture: Architecture
    config: Config
    adapters: Sequence[Adapter] = ()

    def require_decoder(self) -> None:
        """Raise an error if the model is an encoder, which cannot generate text.

        Raises:
            UnsupportedOp: The model is an encoder.
        """
        if not self.config.causal:
            raise UnsupportedOp(
                f"{self.architecture.name} is an encoder, which embeds text and generates none",
                remedy="use Llama.embed or npurt embed, or open another model",
            )

    def divisors(self, n_ctx: int) -> F32 | None:
        """Return the divisors of the rotary frequencies in a context of *n_ctx* positions.

        A file with longrope has two sets of divisors: one for contexts up to the length of the
        original training, one for longer contexts.

        Raises:
            ModelFormatError: The metadata specify longrope, but the file has no divisors.
        """
        name, scaling = "rope_freqs.weight", self.config.scaling
        if name not in self.file:
            long = n_ctx > (scaling.original_context or self.config.n_context)
            name = f"rope_factors_{'long' if long else 'short'}.weight"
        if name in self.file:
            return self.file[name].dequantize()
        if scaling.kind == "longrope":
            raise ModelFormatError(
                f"the metadata specify longrope, but the file lacks {name}", remedy=CONVERT_AGAIN
            )
        return None

    def graph(self, n_ctx: int, captured: Collection[int] = ()) -> ModelGraph:
        """Return the graph for a context of *n_ctx* positions; see `forward.build`.

        Raises:
            ModelFormatError: As `forward.build` and `encoder.build`, or an adapter does not fit.
        """
        if self.architecture.encoder:
            model = encoder.build(self.architecture, self.config, self.file.tensors)
        else:
            model = forward.build(
                self.architecture, self.config, self.file.tensors, self.divisors(n_ctx), captured
            )
        return adapted(model, self.adapters) if self.adapters else model


def describe(file: GGUF, adapters: Sequence[Adapter] = ()) -> Description:
    """Read and check the configuration of *file*.

    Args:
        adapters: LoRA adapters to apply to the model.

    Raises:
        ModelFormatError: npurt does not run the model, its metadata are inconsistent, or an adapter
            is for another architecture.
    """
    require_architecture(adapters, file.architecture)
    return Description(file, *configuration(file), adapters)


def configuration(file: MappedGGUF) -> tuple[Architecture, Config]:
    """Return the architecture of *file* and its checked configuration.

    Raises:
        ModelFormatError: npurt does not run the model, or its metadata are inconsistent.
    """
    architecture = families.find(file.architecture)
    embedding = file.tensors.get(EMBEDDING)
    n_vocab = embedding.shape[0] if embedding else 1
    encodes = architecture.encoder is not None
    config = architecture.complete(read_config(file.metadata, n_vocab, encoder=encodes))
    forward.check(architecture, config)
    return architecture, config
