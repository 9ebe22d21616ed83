"""Helpers that change tiny models: the same model in another form, or a model with other parts."""

import math
import os
from dataclasses import replace

import gguf
import numpy as np

from npurt.quant.tensor import QTensor
from tests.llm import gguf_files as raw
from tests.llm import tiny


def values(file):
    """Return {name: array} of a file of float32 tensors, in numpy's order of axes."""
    return {
        tensor.name: np.frombuffer(content, "<f4", math.prod(tensor.dims)).reshape(
            tensor.dims[::-1]
        )
        for tensor, content in zip(file.tensors, tiny.contents(file), strict=True)
    }


def with_values(file, arrays):
    """Return *file* with these float32 tensors and no others."""
    tensors = [raw.Tensor(name, array.shape[::-1], tiny.F32) for name, array in arrays.items()]
    contents = [np.ascontiguousarray(array, "<f4").tobytes() for array in arrays.values()]
    return tiny.with_data(file, tensors, contents)


BF16 = 30  # ggml type


def quantised(file, kind="q8_0", experts=None):
    """Return *file* with its bfloat16 matrices quantised; the type of *experts* may differ."""
    tensors, contents = [], tiny.contents(file)
    for i, tensor in enumerate(file.tensors):
        if tensor.kind != BF16:
            tensors.append(tensor)
            continue
        wide = np.frombuffer(contents[i], "<u2", math.prod(tensor.dims)).astype(np.uint32) << 16
        values = wide.view(np.float32).reshape(tensor.dims[::-1])
        made = QTensor.quantize(values, experts if experts and "exps" in tensor.name else kind)
        tensors.append(replace(tensor, kind=made.format.number))
        contents[i] = made.blocks.tobytes()
    return tiny.with_data(file, tensors, contents)


def renamed(file, architecture):
    """Return *file* as one of another architecture, with the same keys."""
    old = f"{key_of(file, 'general.architecture')}."
    keys = [
        (name.replace(old, f"{architecture}.", 1) if name.startswith(old) else name, kind, value)
        for name, kind, value in file.keys
    ]
    return file.but(keys=keys).with_key("general.architecture", raw.STRING, architecture)


def key_of(file, name):
    """Return the value of a metadata key."""
    return next(value for key, _, value in file.keys if key == name)


def with_experts(file, architecture, count, used, *, n_ff=48, shared=0, layers=None, seed=0):
    """Return *file* with random experts instead of the feed-forward parts of some layers.

    Args:
        shared: Width of the shared expert; 0: there is none.
        layers: Indices of the layers; by default all.
    """
    rng, arrays = np.random.default_rng(seed), values(file)
    width = arrays["token_embd.weight"].shape[1]
    blocks = sorted({name.rpartition(".ffn_down")[0] for name in arrays if ".ffn_down" in name})

    def weight(*shape):
        return rng.standard_normal(shape) / shape[-1] ** 0.5

    for block in blocks if layers is None else [f"blk.{i}" for i in layers]:
        for name in ("gate", "up", "down"):
            arrays.pop(f"{block}.ffn_{name}.weight")
        arrays[f"{block}.ffn_gate_inp.weight"] = weight(count, width)
        arrays[f"{block}.ffn_gate_exps.weight"] = weight(count, n_ff, width)
        arrays[f"{block}.ffn_up_exps.weight"] = weight(count, n_ff, width)
        arrays[f"{block}.ffn_down_exps.weight"] = weight(count, width, n_ff)
        if shared:
            arrays[f"{block}.ffn_gate_inp_shexp.weight"] = weight(width)
            arrays[f"{block}.ffn_gate_shexp.weight"] = weight(shared, width)
            arrays[f"{block}.ffn_up_shexp.weight"] = weight(shared, width)
            arrays[f"{block}.ffn_down_shexp.weight"] = weight(width, shared)
    file = renamed(with_values(file, arrays), architecture)
    numbers = {"expert_count": count, "expert_used_count": used}
    numbers |= {"expert_feed_forward_length": n_ff}
    numbers |= {"expert_shared_feed_forward_length": shared} if shared else {}
    for name, value in numbers.items():
        file = file.with_key(f"{architecture}.{name}", raw.U32, value)
    return file


def grouped(file, *, legacy=False):
    """Convert a file of qwen35 to qwen3next: group the heads of v by their key head.

    The converter of qwen35 interleaves the heads of v by key head; this function reverses that.
    In a *legacy* file, the rows of q, k, v and z are stacked by key head.
    """
    heads, k_heads, width = (
        key_of(file, f"qwen35.ssm.{name}")
        for name in ("time_step_rank", "group_count", "state_size")
    )
    order = np.arange(heads).reshape(-1, k_heads).T.reshape(-1)  # current indices of the heads
    rows = (order[:, None] * width + np.arange(width)).reshape(-1)
    after = np.concatenate([np.arange(2 * k_heads * width), 2 * k_heads * width + rows])
    moves = {
        **dict.fromkeys(("ssm_a", "ssm_dt.bias", "ssm_beta.weight", "ssm_alpha.weight"), order),
        **dict.fromkeys(("ssm_conv1d.weight", "attn_qkv.weight"), after),
        "attn_gate.weight": rows,
        "ssm_out.weight": (slice(None), rows),
    }
    arrays = values(file)
    for block in {name.rpartition(".ssm_a")[0] for name in arrays if name.endswith(".ssm_a")}:
        for name, move in moves.items():
            arrays[f"{block}.{name}"] = arrays[f"{block}.{name}"][move]
        join(arrays, block, "ssm_ba", k_heads, ["ssm_beta", "ssm_alpha"])
        if legacy:
            qkv = arrays.pop(f"{block}.attn_qkv.weight")
            cuts = [k_heads * width, 2 * k_heads * width]
            for name, part in zip("qkv", np.split(qkv, cuts), strict=True):
                arrays[f"{block}.{name}.weight"] = part
            join(arrays, block, "ssm_in", k_heads, ["q", "k", "v", "attn_gate"])
    file = tiny.without_key(with_values(file, arrays), "qwen35.rope.dimension_sections")
    return renamed(file, "qwen3next")


def join(arrays, block, whole, groups, parts):
    """Stack the rows of *parts* group by group."""
    taken = [arrays.pop(f"{block}.{part}.weight") for part in parts]
    width = taken[0].shape[-1]
    by_group = [array.reshape(groups, -1, width) for array in taken]
    arrays[f"{block}.{whole}.weight"] = np.concatenate(by_group, axis=1).reshape(-1, width)


def joined(file, whole, *parts):
    """Return *file* with the tensors *parts* of each layer stacked into one tensor *whole*."""
    arrays = values(file)
    for block in {
        name.rpartition(f".{parts[0]}.")[0] for name in arrays if f".{parts[0]}." in name
    }:
        rows = [arrays.pop(f"{block}.{part}.weight") for part in parts]
        arrays[f"{block}.{whole}.weight"] = np.concatenate(rows, axis=-2)
    return with_values(file, arrays)


def write_other_weights(source, target):
    """Write the model *source* with the weights of layers 0 and 1 exchanged; return *target*.

    The file has the same header and size, and the same time of its last change.
    """
    data = bytearray(source.read_bytes())
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    for name in [name for name in found if name.startswith("blk.0.")]:
        first, second = found[name], found[name.replace("blk.0.", "blk.1.")]
        assert first.n_bytes == second.n_bytes
        spans = [slice(each.data_offset, each.data_offset + each.n_bytes)
                 for each in (first, second)]  # fmt: skip
        data[spans[0]], data[spans[1]] = data[spans[1]], data[spans[0]]
    target.write_bytes(data)
    stat = source.stat()
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return target
