"""Integer model of the Hexagon kernels in numpy; every build must equal it bit for bit.

Written from the comments of dsp/kernels/product.h and epilogue.h, not their code: block sums are
whole integer sums here, and nothing wraps, saturates or lies in lanes.
"""

import numpy as np

from npurt.hexagon.layout.formats import BY_NAME

ROUND = 1 << 14  # half of Q15


def product(x, held, fmt):
    """Return float32 ``[M, N]``: quantised activations times the weights of an image.

    Args:
        x: `npurt.hexagon.layout.quantise.Quantised` rows.
        held: `npurt.hexagon.layout.images.UnpackedIntegers` weights.
        fmt: Name of the format.
    """
    kind = BY_NAME[fmt].kind
    if kind.group == 0:
        sums = x.codes.astype(np.int64) @ held.codes.astype(np.int64).T
        return row_scaled(sums, x, held)
    scales = np.repeat(x.scales.astype(np.int64), 32 // kind.group, axis=1)
    blocks = x.codes.reshape(len(x.codes), -1, kind.group).astype(np.int64)
    h = block_sums(blocks, held.codes.reshape(len(held.codes), -1, kind.group), kind.unit)
    g = h * q15(held.scales.astype(np.int64), scales[:, None])
    if held.offsets is not None:
        g += offset_products(blocks.sum(axis=2), scales, held.offsets, kind.sums)
    steps = -(-x.codes.shape[1] // 64)
    shift = (steps - 1).bit_length()
    acc = (by_step(g, 64 // kind.group) >> shift).sum(axis=2)
    assert abs(acc).max(initial=0) < 2**31
    return to_float(acc, x.exponents[:, None] + held.exponents + 15 + shift)


def block_sums(x, w, unit):
    """Return h ``[M, N, B]``: sums of code * code by block, in units of *unit*; fits int16.

    Halves go up in the first 32 columns of every 64, and down in the last.
    """
    sums = np.stack([x[:, b] @ w[:, b].T.astype(np.int64) for b in range(x.shape[1])], axis=2)
    last = np.arange(x.shape[1]) * x.shape[2] % 64 >= 32
    h = (sums + np.maximum(unit // 2 - last, 0)) // unit
    assert abs(h).max(initial=0) < 2**15
    return h


def q15(a, b):
    """Return a * b / 2^15; halves round up."""
    return a * b + ROUND >> 15


def offset_products(sums, scales, offsets, share):
    """Return what offsets ``[N, B]`` add for *sums* ``[M, B]`` of the codes of 32 or 16 columns."""
    if share > 0:
        return (sums * scales + (1 << 11) >> 12)[:, None] * offsets
    return share * sums[:, None] * q15(offsets.astype(np.int64), scales[:, None])


def by_step(g, blocks):
    """Return the sums of products ``[M, N, S]`` of each step."""
    missing = -g.shape[2] % blocks
    padded = np.pad(g, ((0, 0), (0, 0), (0, missing)))
    sums = padded.reshape(*g.shape[:2], -1, blocks).sum(axis=3)
    assert abs(sums).max(initial=0) < 2**31
    return sums


def row_scaled(sums, x, held):
    """Return exact sums times the scale of the row of x and that of the row of w."""
    shift = 31 - np.frexp(np.where(sums < 0, -1 - sums, sums).astype(np.float64))[1]
    normal = q15(sums << shift, held.scales[:, 0])
    normal = q15(normal, x.scales[:, :1])
    return to_float(normal, x.exponents[:, None] + held.exponents + 30 - shift)


def to_float(sums, exponents):
    """Round sum * 2^exponent to float32, halves away from zero; infinite or 0 out of range."""
    magnitude = abs(sums)
    bits = np.frexp(magnitude.astype(np.float64))[1]  # bits of the magnitude; exact below 2^53
    normal = magnitude << np.maximum(31 - bits, 0)
    mantissa = (normal + 64 >> 7).astype(np.float64)
    power = exponents - (31 - bits) + 7
    value = np.ldexp(mantissa, power)
    with np.errstate(over="ignore"):
        value = np.where(value >= 2.0**128, np.inf, value)
    value[value < 2.0**-126] = 0
    value = np.where(sums == 0, 0.0, np.where(sums < 0, -value, value))
    return value.astype(np.float32)
