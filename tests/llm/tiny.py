"""Helpers that read the tiny models of tests/data/models and write files with one difference."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from tests.llm import gguf_files as raw

MODELS = Path(__file__).parents[1] / "data/models"
TYPES = {
    "llama3": ("f32", "q8_0"),
    "llama3-256": ("q4_0", "q4_1", "q4_k_m", "q6_k", "q8_0", "iq4_nl"),
    "qwen2": ("f32", "q8_0"),
    "qwen3": ("f32", "q8_0"),
    "qwen3moe": ("f32", "q8_0", "mxfp4"),
    "qwen35": ("f32", "q8_0"),
}
FILES = [(model, kind) for model, kinds in TYPES.items() for kind in kinds]
ALIGNMENT = 32
F32 = 0  # ggml type


def path(model="llama3", kind="f32"):
    """Return the file of a tiny model."""
    return MODELS / model / f"{model}-{kind}.gguf"


def array(model, name):
    """Return one of the stored arrays of a tiny model."""
    return np.load(MODELS / model / f"{name}.npy")


def ids(model="llama3", count=None):
    """Return the first *count* stored token ids of a tiny model as a list."""
    return array(model, "ids").tolist()[:count]


def read(source):
    """Return the GGUF file *source* as a `gguf_files.File` to change and write again."""
    reader = gguf.GGUFReader(source)
    keys = []
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        kind, content = int(field.types[0]), field.contents()
        keys.append((name, kind, (int(field.types[-1]), content) if kind == raw.ARRAY else content))
    tensors = [
        raw.Tensor(t.name, tuple(int(n) for n in t.shape), int(t.tensor_type))
        for t in reader.tensors
    ]
    return with_data(raw.File(keys=keys), tensors, [t.data.tobytes() for t in reader.tensors])


def with_data(file, tensors, contents):
    """Return *file* with *tensors* of the given contents, stored one after another."""
    data, placed = b"", []
    for tensor, content in zip(tensors, contents, strict=True):
        placed.append(replace(tensor, offset=len(data)))
        data += content + bytes(-len(content) % ALIGNMENT)
    return file.but(tensors=placed, data=data)


def contents(file):
    """Return the bytes of every tensor of *file*, in order."""
    ends = [tensor.offset for tensor in file.tensors[1:]] + [len(file.data)]
    return [file.data[t.offset : end] for t, end in zip(file.tensors, ends, strict=True)]


def without_key(file, key):
    """Return *file* without a metadata key."""
    return file.but(keys=[entry for entry in file.keys if entry[0] != key])


def without_tensors(file, unwanted):
    """Return *file* without the tensors whose names satisfy *unwanted*."""
    kept = [
        (tensor, content)
        for tensor, content in zip(file.tensors, contents(file), strict=True)
        if not unwanted(tensor.name)
    ]
    return with_data(file, *zip(*kept, strict=True))


def with_tensor(file, name, values):
    """Return *file* with the float32 array *values* as tensor *name*, added or replaced."""
    rest = without_tensors(file, lambda other: other == name)
    tensor = raw.Tensor(name, values.shape[::-1], F32)
    return with_data(
        rest, [*rest.tensors, tensor], [*contents(rest), values.astype("<f4").tobytes()]
    )


def with_layers(file, count):
    """Return *file* with *count* layers, each a copy of an existing layer."""
    name, have = next((key, n) for key, _, n in file.keys if key.endswith(".block_count"))
    tensors, data = [], []
    for tensor, content in zip(file.tensors, contents(file), strict=True):
        block, dot, rest = tensor.name.removeprefix("blk.").partition(".")
        if not (tensor.name.startswith("blk.") and dot):
            tensors.append(tensor)
            data.append(content)
            continue
        for layer in range(int(block), count, have):
            tensors.append(replace(tensor, name=f"blk.{layer}.{rest}"))
            data.append(content)
    keys = [(k, kind, count if k == name else v) for k, kind, v in file.keys]
    return with_data(file.but(keys=keys), tensors, data)


def write(file, folder, name="model.gguf"):
    """Write *file* into *folder* and return its path."""
    target = folder / name
    target.write_bytes(file.encode())
    return target


def coder(folder):
    """Write a model with tokens for prefix, suffix and middle; return its path."""
    file = read(path("llama3", "q8_0"))
    keys = [
        (f"tokenizer.ggml.fim_{name}_token_id", raw.U32, 300 + i)
        for i, name in enumerate(("pre", "suf", "mid"))
    ]
    return write(file.but(keys=[*file.keys, *keys]), folder)
