"""A float64 decoder, written from the equations: it gives the expected logits of a small model.

It reads files through gguf-py and shares no code with npurt.  Letters: T tokens, D width, H heads,
G kv heads, W head width.
Sources: Touvron et al. 2023 (block), Su et al. 2021 (rotation), Yang et al. 2024 (gated delta net),
Shazeer et al. 2017 (experts); llama.cpp for the pairing of the rotated elements of a head
and the grouping of heads.  `test_logits` checks this decoder against the oracles' float64 logits.
"""

import functools

import gguf
import numpy as np

# True: rotated pairs are (i, i + rotated/2).  False: they are (2i, 2i + 1).
HALVES = {"llama": False} | dict.fromkeys(
    ("qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe"), True
)


@functools.lru_cache(maxsize=4)
def load(path):
    """Return metadata and float64 weights of *path*, and the names of the block-quantised ones."""
    reader = gguf.GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    weights, integer = {}, set()
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        weights[tensor.name] = values.astype(np.float64)
        if gguf.GGML_QUANT_SIZES[tensor.tensor_type][0] > 1:
            integer.add(tensor.name)
    return metadata, weights, integer


def exact(x, int16):
    """Return the activations unrounded."""
    return x


def int8(x, int16, top=127):
    """Round activations to int8 per 32 as the kernels do; with *int16*, add rounded remainders.

    *top* below 127 makes the rounding coarser, for comparison.
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    step = abs(blocks).max(axis=-1, keepdims=True) / top
    step = np.where(step > 0, step, 1)
    rounded = np.rint(blocks / step) * step
    if int16:
        rounded += np.rint((blocks - rounded) / step * 255) * step / 255
    return rounded.reshape(x.shape)


def radians(metadata, weights):
    """Return radians per position ``[rotated / 2]``, with no scaling other than ``rope_freqs``."""
    arch = metadata["general.architecture"]
    heads = metadata[f"{arch}.attention.head_count"]
    width = metadata.get(f"{arch}.attention.key_length")
    width = width or metadata[f"{arch}.embedding_length"] // heads
    width = metadata.get(f"{arch}.rope.dimension_count", width)
    base = metadata[f"{arch}.rope.freq_base"]
    plain = np.array([base ** (-2 * i / width) for i in range(width // 2)])
    return plain / weights.get("rope_freqs.weight", 1)


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


class Decoder:
    """A file and the options of its evaluation; the arguments are those of `logits`."""

    def __init__(self, path, rounding, cache, rotation):
        self.metadata, self.weights, self.integer = load(path)
        self.arch = self.metadata["general.architecture"]
        self.rounding, self.cache = rounding, cache
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.heads = self.key("attention.head_count")
        self.kv_heads = self.key("attention.head_count_kv", self.heads)
        self.rate, self.factor = rotation or (radians(self.metadata, self.weights), 1.0)

    def key(self, name, *default):
        key = f"{self.arch}.{name}"
        return self.metadata.get(key, *default) if default else self.metadata[key]

    def has(self, name):
        return f"{name}.weight" in self.weights

    def norm(self, x, name):
        return rms(x, self.eps) * self.weights[f"{name}.weight"]

    def product(self, x, name, int16=False, index=slice(None)):
        """Multiply *x* by a matrix; *index* selects one of a stack, by default the whole stack."""
        if name == "output" and not self.has(name):
            name = "token_embd"
        x = self.rounding(x, int16) if f"{name}.weight" in self.integer else x
        matrix = np.atleast_2d(self.weights[f"{name}.weight"])[index]
        return x @ matrix.T + self.weights.get(f"{name}.bias", 0)

    def rotate(self, x):  # [T, heads, W]
        pairs = len(self.rate)
        angles = np.arange(len(x))[:, None, None] * self.rate  # [T, 1, pairs]
        cos, sin = np.cos(angles) * self.factor, np.sin(angles) * self.factor
        first = slice(0, pairs) if HALVES[self.arch] else slice(0, 2 * pairs, 2)
        second = slice(pairs, 2 * pairs) if HALVES[self.arch] else slice(1, 2 * pairs, 2)
        turned = x.copy()
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., first] * sin + x[..., second] * cos
        return turned

    def attention(self, h, block):
        t, width = len(h), self.key("attention.key_length", h.shape[1] // self.heads)
        if self.has(f"{block}.attn_qkv"):
            parts = self.product(h, f"{block}.attn_qkv", int16=True)
            kv = self.kv_heads * width
            q, k, v = np.split(parts, [parts.shape[1] - 2 * kv, parts.shape[1] - kv], axis=1)
        else:
            q, k, v = (self.product(h, f"{block}.attn_{name}", int16=True) for name in "qkv")
        q, gate = q.reshape(t, self.heads, -1), None
        if q.shape[-1] == 2 * width:
            q, gate = q[..., :width], q[..., width:].reshape(t, -1)
        k, v = (each.reshape(t, self.kv_heads, width) for each in (k, v))
        if self.has(f"{block}.attn_q_norm"):
            q, k = self.norm(q, f"{block}.attn_q_norm"), self.norm(k, f"{block}.attn_k_norm")
        q, k = self.rotate(q), self.rotate(k)
        k, v = (each.astype(self.cache).astype(np.float64) for each in (k, v))
        k, v = (np.repeat(each, self.heads // self.kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("thw,shw->hts", q, k) * self.key("attention.scale", width**-0.5)
        scores += np.triu(np.full((t, t), -np.inf), 1)
        likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
        likely /= likely.sum(axis=-1, keepdims=True)
        attended = np.einsum("hts,shw->thw", likely, v).reshape(t, -1)
        attended = attended if gate is None else attended * sigmoid(gate)
        return self.product(attended, f"{block}.attn_output")

    def projections(self, h, block, heads, k_heads, width):
        """Return q, k and v before the convolution ``[T, C]``, z, beta and alpha."""
        share, t = heads // k_heads, len(h)
        if self.has(f"{block}.ssm_in"):  # q, k, v, z of each key head
            every = self.product(h, f"{block}.ssm_in", int16=True).reshape(t, k_heads, -1)
            cuts = [width, 2 * width, (2 + share) * width]
            q, k, v, z = (p.reshape(t, -1) for p in np.split(every, cuts, axis=2))
            qkv = np.concatenate([q, k, v], axis=1)
        else:
            qkv = self.product(h, f"{block}.attn_qkv", int16=True)
            z = self.product(h, f"{block}.attn_gate", int16=True)
        if self.has(f"{block}.ssm_ba"):  # beta, alpha of each key head
            both = self.product(h, f"{block}.ssm_ba", int16=True).reshape(t, k_heads, 2, share)
            beta, alpha = both[:, :, 0].reshape(t, -1), both[:, :, 1].reshape(t, -1)
        else:
            beta = self.product(h, f"{block}.ssm_beta", int16=True)
            alpha = self.product(h, f"{block}.ssm_alpha", int16=True)
        return qkv, z, beta, alpha

    def delta_net(self, h, block):
        heads, k_heads = self.key("ssm.time_step_rank"), self.key("ssm.group_count")
        width, kernel_size, t = self.key("ssm.state_size"), self.key("ssm.conv_kernel"), len(h)
        qkv, z, beta, alpha = self.projections(h, block, heads, k_heads, width)
        seen = np.concatenate([np.zeros((kernel_size - 1, qkv.shape[1])), qkv])
        kernel = self.weights[f"{block}.ssm_conv1d.weight"]
        mixed = silu(sum(seen[j : j + t] * kernel[:, j] for j in range(kernel_size)))
        mixed = mixed.reshape(t, -1, width)
        q, k, v = np.split(mixed, [k_heads, 2 * k_heads], axis=1)
        q, k = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
        of = np.arange(heads) // (heads // k_heads)
        of = of if self.arch == "qwen3next" else np.arange(heads) % k_heads
        rate = np.log1p(np.exp(alpha + self.weights[f"{block}.ssm_dt.bias"]))
        out, _ = delta_net(
            q[:, of], k[:, of], v, self.weights[f"{block}.ssm_a"] * rate, sigmoid(beta)
        )
        out = rms(out, self.eps) * self.weights[f"{block}.ssm_norm.weight"]
        gated = out * silu(z.reshape(out.shape))
        return self.product(gated.reshape(t, -1), f"{block}.ssm_out")

    def feed_forward(self, h, block, suffix="", index=slice(None)):
        if self.has(f"{block}.ffn_gate_up{suffix}"):
            parts = self.product(h, f"{block}.ffn_gate_up{suffix}", index=index)
            gate, up = np.split(parts, 2, axis=-1)
        else:
            gate = self.product(h, f"{block}.ffn_gate{suffix}", index=index)
            up = self.product(h, f"{block}.ffn_up{suffix}", index=index)
        return self.product(silu(gate) * up, f"{block}.ffn_down{suffix}", index=index)

    def mixture(self, h, block):
        """Compute every expert for every row; the weights of unselected experts are 0."""
        scores = self.product(h, f"{block}.ffn_gate_inp")
        likely = np.exp(scores - scores.max(axis=-1, keepdims=True))
        likely /= likely.sum(axis=-1, keepdims=True)
        used = self.key("expert_used_count")
        minimum = np.sort(likely, axis=-1)[:, -used, None]
        shares = np.where(likely >= minimum, likely, 0)
        if self.key("expert_weights_norm", self.arch != "qwen2moe"):
            shares /= shares.sum(axis=-1, keepdims=True)
        out = np.zeros_like(h)
        for e in range(scores.shape[1]):
            out += shares[:, [e]] * self.feed_forward(h, block, "_exps", e)
        out *= self.key("expert_weights_scale", 1.0)
        if self.has(f"{block}.ffn_gate_shexp"):
            gate = self.product(h, f"{block}.ffn_gate_inp_shexp")
            out += sigmoid(gate) * self.feed_forward(h, block, "_shexp")
        return out

    def hidden(self, ids):
        """Return the hidden states after the output norm, ``[T, D]``."""
        x = self.weights["token_embd.weight"][np.asarray(ids)]
        for i in range(self.key("block_count") - self.key("nextn_predict_layers", 0)):
            block = f"blk.{i}"
            mixer = self.delta_net if f"{block}.ssm_a" in self.weights else self.attention
            x = x + mixer(self.norm(x, f"{block}.attn_norm"), block)
            second = "ffn_norm" if self.has(f"{block}.ffn_norm") else "post_attention_norm"
            part = self.mixture if self.has(f"{block}.ffn_gate_inp") else self.feed_forward
            x = x + part(self.norm(x, f"{block}.{second}"), block)
        return self.norm(x, "output_norm")

    def logits(self, ids):
        return self.product(self.hidden(ids), "output", int16=True)


def delta_net(q, k, v, decay, beta, state=0.0):
    """Return a gated delta net's output ``[T, H, W]`` and last state ``[H, W of k, W of v]``.

    Args:
        q, k, v: ``[T, H, W]``, q and k of length 1.
        decay, beta: ``[T, H]``; decay ``[T, H, W]`` if it differs by element of k.
    """
    heads, width = v.shape[1:]
    state = np.zeros((heads, width, width)) + state
    decay = decay if decay.ndim == 3 else decay[..., None]
    out = np.empty_like(v)
    for t in range(len(v)):
        state = state * np.exp(decay[t])[..., None]
        wrong = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + np.einsum("hk,hv->hkv", k[t], beta[t][:, None] * wrong)
        out[t] = np.einsum("hkv,hk->hv", state, q[t]) * width**-0.5
    return out, state


def logits(path, ids, *, rounding=exact, cache=np.float64, rotation=None):
    """Return float64 ``[T, V]`` for all of *ids*, from an empty cache.

    Args:
        rounding: Function of the activations before a product with block-quantised weights.
        cache: Element type of the cached keys and values.
        rotation: Radians per position ``[W / 2]`` and the factor of cos and sin; by default those
            of the file.
    """
    return Decoder(path, rounding, cache, rotation).logits(ids)


def hidden(path, ids):
    """Return float64 ``[T, D]``: the hidden states of *ids* after the output norm."""
    return Decoder(path, exact, np.float64, None).hidden(ids)


def nmse(y, reference):
    """Return the squared error of *y* relative to the square of *reference*."""
    y, reference = y.astype(np.float64), reference.astype(np.float64)
    return float(((y - reference) ** 2).sum() / (reference**2).sum())
