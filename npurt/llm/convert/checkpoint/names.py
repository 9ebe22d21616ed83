"""Rename the tensors of a checkpoint as in a text-only model that transformers saves."""

import warnings
from collections.abc import Mapping
from pathlib import Path

from npurt.base import file_kinds
from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.encoders import renamed
from npurt.llm.convert.checkpoint.safetensors import StoredTensor, add

# Prefixes of all names if a model is saved within torch.compile, DistributedDataParallel or peft.
WRAPPERS = ("_orig_mod.", "module.", "base_model.model.")
TEXT_PART = ("language_model.", "model.language_model.")  # in models of several parts
# Prefixes of the parts for images.
OTHER_PARTS = tuple(
    f"{before}{name}." for before in ("", "model.")
    for name in ("vision_tower", "multi_modal_projector", "visual")
)  # fmt: skip
BARE_MODEL = ("layers.", "embed_tokens.", "norm.")  # prefixes in a model saved without its head
PARTS_OF_ADAPTERS = (
    ".lora_A.",
    ".lora_B.",
    ".lora_embedding_A",
    ".base_layer.",
    ".lora_magnitude_vector",
)


def text_model(
    stored: Mapping[str, StoredTensor], folder: Path, *, encoder: bool
) -> dict[str, StoredTensor]:
    """Return the tensors of the text model by their names in a text-only model.

    Warn if the checkpoint has parts for images, which are left out.

    Raises:
        ModelFormatError: Two tensors get one name and differ, or adapters are not merged.
    """
    adapter = next(
        (name for name in stored if any(part in name for part in PARTS_OF_ADAPTERS)), None
    )
    if adapter:
        raise ModelFormatError(
            f"the checkpoint has a LoRA adapter that is not merged into the weights: {adapter}",
            remedy=file_kinds.ADAPTER,
        )
    found: dict[str, StoredTensor] = {}
    others = False
    for name, each in stored.items():
        plain = _without(name, WRAPPERS)
        if plain.startswith(OTHER_PARTS):
            others = True
            continue
        if encoder:
            plain = renamed(plain)
        else:
            plain = _without(plain, TEXT_PART)
            plain = "model." * plain.startswith(BARE_MODEL) + plain
        if plain:
            add(found, plain, each)
    if others:
        warnings.warn(
            f"{folder.name} has parts other than the text model, which are not converted",
            stacklevel=3,
        )
    return found


def _without(name: str, prefixes: tuple[str, ...]) -> str:
    """Return *name* without *prefixes* at its beginning."""
    while prefix := next((each for each in prefixes if name.startswith(each)), ""):
        name = name.removeprefix(prefix)
    return name
