"""Convert the experts of gpt-oss, whose checkpoints have one tensor per projection.

The rows of gate and up alternate.  The released files are MXFP4: ``_blocks`` [E, rows, K / 32, 16]
has two codes per byte, adjacent in a row; ``_scales`` [E, rows, K / 32] has the exponents.  The
codes are copied without requantisation.  Fine-tuned files are bfloat16, [E, K, rows].
Sources: transformers models/gpt_oss, integrations/mxfp4.py, Apache-2.0; llama.cpp
conversion/gpt_oss.py, MIT (names in GGUF).
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.safetensors import AGAIN, StoredTensor
from npurt.llm.convert.mixture import Types
from npurt.llm.convert.types import new_tensor
from npurt.llm.file.writer import NewTensor
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME

NAME = re.compile(
    r"model\.layers\.(0|[1-9]\d{0,4})\.mlp\.experts\.(gate_up_proj|down_proj)"
    r"(_blocks|_scales|_bias|)",
    re.ASCII,
)
# Projection -> GGUF name and rows of each part.
PARTS = {
    "gate_up_proj": (("ffn_gate_exps", slice(0, None, 2)), ("ffn_up_exps", slice(1, None, 2))),
    "down_proj": (("ffn_down_exps", slice(None)),),
}
MXFP4 = BY_NAME["mxfp4"]
AXES = {"_blocks": 4, "_scales": 3, "_bias": 2, "": 3}


Experts = dict[tuple[str, str], dict[str, StoredTensor]]  # (layer, projection) -> role -> tensor


def taken_experts(stored: dict[str, StoredTensor]) -> Experts:
    """Remove the tensors of the experts from *stored*, and return them.

    Raises:
        ModelFormatError: A tensor has an impossible shape.
    """
    found: Experts = {}
    for name in list(stored):
        if match := NAME.fullmatch(name):
            layer, projection, role = match.groups()
            each = found.setdefault((layer, projection), {})[role] = stored.pop(name)
            if len(each.shape) != AXES[role] or 0 in each.shape:
                raise _bad(f"{name} has shape {each.shape}")
    return found


def names_of_experts(experts: Experts) -> list[str]:
    """Return the GGUF names of the experts' matrices."""
    return [
        f"blk.{layer}.{part}.weight"
        for layer, projection in experts
        for part, _ in PARTS[projection]
    ]


def tensors_of_experts(experts: Experts, types: Types) -> list[NewTensor]:
    """Return the GGUF tensors of the experts.

    Raises:
        ModelFormatError: A tensor is missing, or shapes are inconsistent.
    """
    made = []
    for (layer, projection), roles in experts.items():
        for part, rows in PARTS[projection]:
            made += _tensors(f"blk.{layer}.{part}", roles, rows, types)
    return made


def _tensors(
    name: str, roles: Mapping[str, StoredTensor], rows: slice, types: Types
) -> list[NewTensor]:
    if "_bias" not in roles:
        raise _bad(f"the checkpoint lacks {name}.bias")
    bias = roles["_bias"]
    shape = (bias.shape[0], len(range(*rows.indices(bias.shape[1]))))
    made = [new_tensor(f"{name}.bias", shape, BY_NAME["f32"], partial(_biases, bias, rows))]
    if "" in roles and "_blocks" not in roles:
        plain = roles[""]
        experts, k, n = plain.shape
        shape3 = (experts, len(range(*rows.indices(n))), k)
        fmt = types.of(f"{name}.weight", shape3)
        made.append(new_tensor(f"{name}.weight", shape3, fmt, partial(_plain, plain, rows)))
    elif {"_blocks", "_scales"} <= roles.keys() and "" not in roles:
        blocks, scales = roles["_blocks"], roles["_scales"]
        experts, n, count, width = blocks.shape
        if scales.shape != (experts, n, count) or width != 16:
            raise _bad(
                f"{blocks.name} has shape {blocks.shape}, but its scales have shape {scales.shape}"
            )
        shape3 = (experts, len(range(*rows.indices(n))), count * MXFP4.block)
        codes = partial(_codes, blocks, scales, rows)
        made.append(new_tensor(f"{name}.weight", shape3, MXFP4, codes))
    else:
        have = ", ".join(each.name for each in roles.values())
        raise _bad(f"the weights of {name} are incomplete: the checkpoint has only {have}")
    return made


def _biases(stored: StoredTensor, rows: slice) -> Iterator[QTensor]:
    tensor = stored.tensor()
    yield QTensor(np.ascontiguousarray(tensor.blocks[:, rows]), tensor.format)


def _plain(stored: StoredTensor, rows: slice) -> Iterator[QTensor]:
    tensor = stored.tensor()
    for expert in tensor.blocks:
        yield QTensor(np.ascontiguousarray(expert.T[rows]), tensor.format)


def _codes(blocks: StoredTensor, scales: StoredTensor, rows: slice) -> Iterator[QTensor]:
    """Yield the MXFP4 blocks of each expert, with codes i and i + 16 in one byte as in GGUF."""
    for every, exponents in zip(blocks.raw(), scales.raw(), strict=True):
        pairs, e = every[rows], exponents[rows]
        codes = np.stack((pairs & 15, pairs >> 4), -1).reshape(*pairs.shape[:-1], 32)
        made = np.empty(e.shape, DTYPES[MXFP4.name])
        made["e"], made["qs"] = e, codes[..., :16] | codes[..., 16:] << 4
        yield QTensor(made, MXFP4)


def _bad(what: str) -> ModelFormatError:
    return ModelFormatError(what, remedy=AGAIN)
