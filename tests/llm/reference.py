"""A decoder in float64, from its equations: what the logits of a small model must be.

It reads files through gguf-py and shares no code with npurt.  Letters: T tokens, D width, H heads,
G kv heads, W head width.
Sources: Touvron et al. 2023 (block), Su et al. 2021 (rotation); llama.cpp for which elements of a
head rotate together.  `test_logits` checks it against the oracles' own float64 logits.
"""

import functools

import gguf
import numpy as np

HALVES = {"llama": False, "qwen2": True}  # pairs are (i, i + W/2), else (2i, 2i + 1)


@functools.lru_cache(maxsize=4)
def load(path):
    """Return metadata and float64 weights of *path*, and the names of those that are blocks."""
    reader = gguf.GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    weights, integer = {}, set()
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights[tensor.name] = values.astype(np.float64)
        if gguf.GGML_QUANT_SIZES[tensor.tensor_type][0] > 1:
            integer.add(tensor.name)
    return metadata, weights, integer


def exact(x, fine):
    """Multiply by the activations as they are."""
    return x


def int8(x, fine, top=127):
    """Round activations as the kernels do: to int8 per 32, and *fine* ones by their rest again.

    *top* below 127 is a coarser rounding, for comparison.
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    step = abs(blocks).max(axis=-1, keepdims=True) / top
    step = np.where(step > 0, step, 1)
    rounded = np.rint(blocks / step) * step
    if fine:
        rounded += np.rint((blocks - rounded) / step * 254) * step / 254
    return rounded.reshape(x.shape)


def radians(metadata, weights):
    """Return radians per position ``[W / 2]`` without scaling but by ``rope_freqs``."""
    arch = metadata["general.architecture"]
    heads = metadata[f"{arch}.attention.head_count"]
    width = metadata.get(f"{arch}.attention.key_length")
    width = width or metadata[f"{arch}.embedding_length"] // heads
    base = metadata[f"{arch}.rope.freq_base"]
    plain = np.array([base ** (-2 * i / width) for i in range(width // 2)])
    return plain / weights.get("rope_freqs.weight", 1)


def logits(path, ids, *, rounding=exact, cache=np.float64, turn=None):
    """Return float64 ``[T, V]`` for all of *ids*, from an empty cache.

    Args:
        rounding: What becomes of activations before a product with block-quantised weights.
        cache: Element type that keys and values are kept in.
        turn: Radians per position ``[W / 2]`` and the factor of cos and sin, if not the file's.
    """
    metadata, weights, integer = load(path)
    arch = metadata["general.architecture"]
    eps = metadata[f"{arch}.attention.layer_norm_rms_epsilon"]
    heads = metadata[f"{arch}.attention.head_count"]
    kv_heads = metadata[f"{arch}.attention.head_count_kv"]
    rate, factor = turn or (radians(metadata, weights), 1.0)
    angles = np.arange(len(ids))[:, None, None] * rate  # [T, 1, W / 2]
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor

    def norm(x, name):
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weights[f"{name}.weight"]

    def product(x, name, fine=False):
        matrix = weights.get(f"{name}.weight")
        if matrix is None:
            name = "token_embd"
            matrix = weights["token_embd.weight"]
        x = rounding(x, fine) if f"{name}.weight" in integer else x
        return x @ matrix.T + weights.get(f"{name}.bias", 0)

    def rotate(x):  # [T, heads, W]
        half = x.shape[-1] // 2
        first = slice(0, half) if HALVES[arch] else slice(0, None, 2)
        second = slice(half, None) if HALVES[arch] else slice(1, None, 2)
        turned = np.empty_like(x)
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., first] * sin + x[..., second] * cos
        return turned

    x = weights["token_embd.weight"][np.asarray(ids)]
    future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for i in range(metadata[f"{arch}.block_count"]):
        block = f"blk.{i}"
        h = norm(x, f"{block}.attn_norm")
        q, k, v = (product(h, f"{block}.attn_{name}", fine=True) for name in "qkv")
        q = rotate(q.reshape(len(ids), heads, -1))
        k = rotate(k.reshape(len(ids), kv_heads, -1)).astype(cache).astype(np.float64)
        v = v.reshape(len(ids), kv_heads, -1).astype(cache).astype(np.float64)
        k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("thw,shw->hts", q, k) * q.shape[-1] ** -0.5 + future
        likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
        likely /= likely.sum(axis=-1, keepdims=True)
        attended = np.einsum("hts,shw->thw", likely, v).reshape(len(ids), -1)
        x = x + product(attended, f"{block}.attn_output")
        h = norm(x, f"{block}.ffn_norm")
        gate, up = product(h, f"{block}.ffn_gate"), product(h, f"{block}.ffn_up")
        x = x + product(gate / (1 + np.exp(-gate)) * up, f"{block}.ffn_down")
    return product(norm(x, "output_norm"), "output", fine=True)


def nmse(y, reference):
    """Return the squared error of *y* relative to the square of *reference*."""
    y, reference = y.astype(np.float64), reference.astype(np.float64)
    return float(((y - reference) ** 2).sum() / (reference**2).sum())
