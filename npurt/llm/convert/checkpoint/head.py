"""Choose the output matrix and the embedding of a checkpoint, which a model may share.

If config.json says that they are tied, a checkpoint usually stores one of them.  Fine-tuning may
train a separate output matrix and leave the setting as it was.  The stored matrix then counts, as
in transformers 5 and in llama.cpp's converter.
"""

import math
import warnings

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.safetensors import AGAIN, StoredTensor
from npurt.llm.convert.checkpoint.settings import CheckpointSettings
from npurt.quant.tensor import QTensor

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
STEP = 1 << 22  # elements compared at a time


def with_head(
    settings: CheckpointSettings, stored: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return *stored* with the embedding, and with the output matrix if it is another matrix.

    Warn if config.json says that the matrices are tied, but they differ.

    Raises:
        ModelFormatError: config.json says that the matrices are separate, and one is missing.
    """
    # LFM2 uses the name tie_embedding.
    tied = settings.get("tie_embedding", settings.get("tie_word_embeddings"))
    found = dict(stored)
    if tied is False and HEAD not in found:
        raise ModelFormatError(
            f"config.json: tie_word_embeddings is false, but the checkpoint has no {HEAD}",
            remedy=AGAIN,
        )
    if not tied or HEAD not in found:
        return found
    if EMBEDDING not in found:
        found[EMBEDDING] = found.pop(HEAD)
    elif _equal(found[HEAD], found[EMBEDDING]):
        del found[HEAD]
    else:
        warnings.warn(
            f"config.json says that the output matrix is tied to the embedding, but {HEAD} differs "
            f"from {EMBEDDING}: the file has both",
            stacklevel=3,
        )
    return found


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors have the same shape and values; their types may differ."""
    if one.shape != other.shape:
        return False
    size = math.prod(one.shape)
    tensors = [each.tensor((size,)) for each in (one, other)]
    for start in range(0, size, STEP):
        part, its_twin = (
            QTensor(each.blocks[start : start + STEP], each.format).dequantize() for each in tensors
        )
        if not np.array_equal(part, its_twin):
            return False
    return True
