"""Split the tensors of a checkpoint that are several tensors in GGUF.

The experts of newer Qwen models are ``gate_up_proj`` [E, 2F, D], with the rows of the gate first,
and ``down_proj`` [E, D, F].  Qwen3-Next has q, k, v and z in one matrix.
Sources: transformers models/qwen3_5_moe, models/qwen3_next, Apache-2.0 (layouts).
"""

import re
from collections.abc import Iterator, Mapping

from npurt.errors import ModelFormatError
from npurt.graph.sizes import SIZES
from npurt.llm.convert.checkpoint.safetensors import AGAIN, StoredTensor

EXPERTS = re.compile(r"(.+\.mlp\.experts)\.(gate_up|down)_proj(?:\.weight)?", re.ASCII)
JOINED = ".linear_attn.in_proj_qkvz.weight"


def split_joined(stored: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """Yield each tensor with its name, and each joined tensor as its parts with their names.

    Both parts of a `JOINED` tensor are the whole tensor; `delta_nets.grouped_heads` selects their
    rows.

    Raises:
        ModelFormatError: The tensor of the experts is no stack of matrices.
    """
    for name, each in stored.items():
        if match := EXPERTS.fullmatch(name):
            yield from _experts(match[1], match[2].split("_"), each)
        elif name.endswith(JOINED):
            yield name.replace("qkvz", "qkv"), each
            yield name.replace("qkvz", "z"), each
        else:
            yield name, each


def _experts(stem: str, parts: list[str], each: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    if len(each.shape) != 3 or 0 in each.shape or each.shape[1] % len(parts):
        raise ModelFormatError(f"{each.name} has shape {each.shape}", remedy=AGAIN)
    count, rows, columns = each.shape
    if count > SIZES.experts:
        raise ModelFormatError(
            f"{each.name} has {count} experts, above {SIZES.experts}", remedy=AGAIN
        )
    size = len(each.data) // (count * len(parts))  # bytes of a matrix
    for i in range(count * len(parts)):
        expert, part = divmod(i, len(parts))
        name = f"{stem}.{expert}.{parts[part]}_proj.weight"
        shape, data = (rows // len(parts), columns), each.data[i * size : (i + 1) * size]
        yield name, StoredTensor(name, each.dtype, shape, data, each.file)
