"""Compute reference results independently of the kernels, and bounds on the kernels' errors.

Every function returns a float64 reference and a bound on the error; the bounds are derived here and
not tuned.  u = 2^-24 is half an ulp of float32, relative; the error of a result below the normal
range is at most TINY = 2^-150 instead.  n successive roundings have a relative error of at most n u
/ (1 - n u), called gamma(n) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, lemma
3.1); sums of products are bounded by gamma times the sum of the absolute products (ibid., section
3.1), in any order.
"""

import math

import numpy as np

from npurt.quant.activations import quantize_activations

U = 2.0**-24
TINY = 2.0**-150

# exp16 of vec.h: the error of the polynomial is 0.35^8 / 8! < 0.13 u.  Its last step rounds a value
# of at least 0.7 by u, each earlier step by 0.35 of that, and the reduced argument by
# u |r| < 0.35 u; the sum is below 4 u.  Below -87.3 the result is 0, with an error of 2^-125.9.
EXP = 4 * U
EXP_FLUSHED = 2.0**-125


def gamma(n):
    """Return the largest relative error of *n* roundings."""
    assert n * U < 0.01
    return n * U / (1 - n * U)


def assert_within(y, reference, bound):
    """Raise unless ``|y - reference| <= bound`` everywhere; NaN is never within."""
    bad = ~(abs(y.astype(np.float64) - reference) <= bound)
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        raise AssertionError(
            f"{bad.sum()} of {bad.size} are outside, first {at}: {y[at]!r} is not "
            f"{reference[at]!r} +- {bound[at]!r}"
        )


def integer_matmul(x, w):
    """Return ``x @ w.T`` of a quantised *w* as the kernels define it: x rounded to int8 per 32.

    Returns:
        The reference, its bound, and the sum of the absolute products, all ``[M, N]``: where that
        sum is beyond float32, the result is infinite or NaN.
    """
    codes, scales = quantize_activations(x)
    return product_of_codes(codes, scales, w)


def product_of_codes(codes, scales, w):
    """Return the same for activations given as integers ``[M, K]`` and scales ``[M, K / 32]``.

    A group adds its scaled dot product to the sum in one rounding, having rounded the product of
    the two scales; an offset likewise, having rounded the sum of the activations.  Each of these
    terms is rounded once on its own and once with every addition from then on.  Dequantising rounds
    each weight that has an offset once more, in the reference; one more pays for float64.  Dot
    products of int8 codes are exact in float32; those of wider integers round once more.
    """
    maximum = int(abs(codes.astype(np.int32)).max(initial=127))
    m, k = codes.shape
    xs = (codes.reshape(m, -1, 32) * scales.astype(np.float64)[..., None]).reshape(m, k)
    ws = w.dequantize().astype(np.float64)
    canonical = w.canonical()
    integers = (
        canonical.codes if canonical.codebook is None else canonical.codebook[canonical.codes]
    )
    spread = canonical.group
    size = abs(integers * np.repeat(canonical.scales.astype(np.float64), spread, -1))
    lost = 128 * maximum * k  # each code product, where the product of the scales is subnormal
    roundings = k // spread + 2 + (maximum > 127)
    if canonical.offsets is not None:
        offsets = abs(np.repeat(canonical.offsets.astype(np.float64), spread, -1))
        size += offsets
        lost = lost + offsets.sum(axis=-1)
        roundings += k // spread + 1
    total = abs(xs) @ size.T
    bound = gamma(roundings) * total + TINY * (lost + 2 * roundings)
    return xs @ ws.T, bound, total


def dense_matmul(x, w):
    """Return ``x @ w.T`` of float weights: one fused multiply-add for each of K."""
    xs, ws = x.astype(np.float64), w.dequantize().astype(np.float64)
    k = x.shape[1]
    return xs @ ws.T, gamma(k) * (abs(xs) @ abs(ws).T) + TINY * k


def int16_activations(codes, remainders, scales):
    """Return what codes and remainders stand for, and how far from the activation that may be.

    With t the scale ``[M, K / 32]``, a number stands for t times 255 * code + remainder.  The scale
    of codes, t and the inverse of the former that codes are made with are each rounded once, so
    255 t times the inverse is within gamma(3) of 1; a value times the inverse is rounded again.  So
    codes leave over at most 127.5 + e in units of t, e = 255 * 128 gamma(4).  That is rounded, and
    twice more when it is multiplied by 255 times the inverse: gamma(6) of it with the three before.
    A remainder is within half of it, or 127 and within half and e; and codes are off by gamma(1).
    Where 255 times the inverse overflows remainders may be zero, and 127.5 + e stay.  Where t or
    255 t is subnormal, each is off by TINY, the first up to 256 * 128 times.
    """
    scales = np.repeat(scales.astype(np.float64), 32, -1)
    values = (255.0 * codes + remainders) * scales
    off = 0.5 + 255 * 128 * gamma(5) + 129 * gamma(6)
    tiny = 255 * scales < 255 / np.finfo(np.float32).max
    return values, np.where(tiny, 130, off) * scales + (256 * 128 + 3 * 128) * TINY


def norm(x, weight, eps):
    """Return ``x / sqrt(mean(x^2) + eps) * weight``.

    The sum of squares runs in 16 lanes and a tree of four additions, what is left over one by one,
    all of one sign; then come a quotient, an addition, a root, which halves what was before it, a
    reciprocal and two products.
    """
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    k = x.shape[1]
    reference = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + np.float64(eps)) * weight
    squares = k // 16 + 4 + k % 16 + 2
    return reference, gamma((squares + 1) // 2 + 4) * abs(reference) + 2 * TINY * (1 + abs(weight))


def layer_norm(x, weight, bias, eps):
    """Return ``(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias``.

    The mean is off by what its sum in 16 lanes and a quotient lose of the mean of |x|, and so is
    each difference, with a rounding of its own.  Such an error d of all differences adds d^2 to
    their squares, and nothing of first order, because they add up to nothing; the rest of the sum
    of squares, the root and the products are as in `norm`, and the bias is one sum more.
    """
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    k = x.shape[1]
    apart = x - x.mean(axis=1, keepdims=True)
    root = np.sqrt((apart**2).mean(axis=1, keepdims=True) + np.float64(eps))
    scaled = apart / root * weight
    lost = gamma(k // 16 + 4 + k % 16 + 2) * abs(x).mean(axis=1, keepdims=True)
    lost = (lost + U * abs(apart)) / root
    squares = k // 16 + 4 + k % 16 + 4
    relative = gamma((squares + 1) // 2 + 4) + lost.max(axis=1, keepdims=True) ** 2
    bound = relative * abs(scaled) + 1.01 * lost * abs(weight) + 2 * TINY * (1 + abs(weight))
    return scaled + bias, bound + U * (abs(scaled + bias) + bound)


def gelu_erf(gate):
    """Return ``gate (1 + erf(z)) / 2``, z = gate / sqrt(2).

    The polynomial in t is within 1.5e-7 of erfc by its source.  t is within gamma(4), which counts
    at most 3.5 times (that is t p'(t) at t = 1, its most); sums of at most 1.5 are rounded five
    times, as are coefficients that add up to 4.5; then come three products, and e^(-z^2) within EXP
    and gamma(5) z^2, relative.  The sum with 1 and the product with gate are two roundings.
    """
    gate = gate.astype(np.float64)
    z = abs(gate) / math.sqrt(2)
    tail = np.vectorize(math.erfc, otypes=[np.float64])(z)
    reference = gate * np.where(gate < 0, tail / 2, 1 - tail / 2)
    wrong = 1.5e-7 + gamma(14 + 8 + 5) + (EXP + gamma(5) * np.minimum(z * z, 88) + gamma(3)) * tail
    return reference, 0.505 * abs(gate) * wrong + 2.02 * U * abs(reference) + TINY * (1 + abs(gate))


def silu(gate, up):
    """Return ``gate / (1 + e^-gate) * up``.

    With t = e^-|gate| the kernel forms gate t / (1 + t) or gate / (1 + t): t counts at most one and
    a half times, and there are four more roundings.
    """
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    with np.errstate(over="ignore"):
        reference = gate / (1 + np.exp(-gate)) * up
    flushed = abs(gate) * EXP_FLUSHED * (gate < -87)
    return reference, 1.01 * (1.5 * EXP + 4 * U) * abs(reference) + (flushed + TINY) * (1 + abs(up))


def gelu(gate, up):
    """Return ``gate / (1 + e^-2v) * up``, v = sqrt(2 / pi) (gate + 0.044715 gate^3).

    The terms of v have one sign: two products, a fused sum, a product and two rounded constants
    leave 2v within gamma(6), and so t = e^-|2v| within EXP and gamma(6) |2v|, relative.  t counts
    once, and there are four more roundings, as in `silu`.
    """
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    twice = 2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    with np.errstate(over="ignore"):
        reference = gate / (1 + np.exp(-twice)) * up
    flushed = abs(gate) * EXP_FLUSHED * (twice < -87)
    relative = EXP + gamma(6) * np.minimum(abs(twice), 88) + 4 * U
    return reference, 1.01 * relative * abs(reference) + (flushed + TINY) * (1 + abs(up))


def clamped(gate, up, limit, alpha, offset):
    """Return ``g / (1 + e^(-alpha g)) * (u + offset)``, g and u being clamped at *limit*.

    alpha g is rounded, which e^-|alpha g| has |alpha g| times; the sigmoid has two roundings, and
    there are a sum and two products.
    """
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    alpha, offset = float(np.float32(alpha)), float(np.float32(offset))
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    inner = alpha * gate
    with np.errstate(over="ignore"):
        reference = gate / (1 + np.exp(-inner)) * (up + offset)
    flushed = abs(gate) * EXP_FLUSHED * (inner < -87)
    relative = EXP + U * np.minimum(abs(inner), 88) + 5 * U
    slack = (flushed + TINY) * (1 + abs(up) + abs(offset))
    return reference, 1.01 * relative * abs(reference) + slack


# tanh16 of vec.h is -e / (2 + e), e = e^r - 1, r = -2|x|.  For r > -0.35 e is a polynomial times r,
# off by 4 u; below, e^r <= 0.71 is off by EXP, and what is subtracted leaves at least 0.29: 11 u.
# -e / (2 + e) has a slope of 2 / (2 + e) <= 1.18 in e, relative, and rounds twice.
TANH = 1.18 * 11 * U + 2 * U


def capped(x, cap):
    """Return ``cap * tanh(x / cap)`` and its bound: there are a quotient and a product besides."""
    cap = float(np.float32(cap))
    reference = cap * np.tanh(x / cap)
    return reference, (TANH + 2 * U) * 1.01 * abs(reference) + TINY * (1 + cap)


def rotate(a, b, cos, sin):
    """Return ``(a cos - b sin, a sin + b cos)`` and the bound of each: two products, one sum."""
    a, b, cos, sin = (v.astype(np.float64) for v in (a, b, cos, sin))
    first, second = a * cos - b * sin, a * sin + b * cos
    bounds = (
        gamma(2) * (abs(a * cos) + abs(b * sin)) + 3 * TINY,
        gamma(2) * (abs(a * sin) + abs(b * cos)) + 3 * TINY,
    )
    return (first, second), bounds


def transposed_matvec(w, r):
    """Return ``W^T r``, its bound, and the least that the squares of its terms add up to.

    A term is the product of three float32 numbers, to which an offset may be added; the terms of 64
    panels add up in float32, the rest in float64.  r is exact in float32.
    """
    canonical = w.canonical()
    n, k = canonical.codes.shape
    integers = (
        canonical.codes if canonical.codebook is None else canonical.codebook[canonical.codes]
    )
    values = integers * np.repeat(canonical.scales.astype(np.float64), canonical.group, -1)
    size = abs(values)
    if canonical.offsets is not None:
        offsets = np.repeat(canonical.offsets.astype(np.float64), canonical.group, -1)
        values, size = values + offsets, size + abs(offsets)
    roundings = 3 + min(-(-n // 16), 64)
    terms = abs(r) @ size
    squares = ((r[:, None] * size) ** 2).sum(axis=0)
    return r @ values, gamma(roundings) * terms + TINY * n * k, squares


def attend(q, keys, values, scale, *, softcap=0.0, sink=None):
    """Return ``softmax(scale * q . K^T) . V`` of one query row over S positions.

    Args:
        q: ``[W]``.
        keys: ``[S, W]`` and *values* ``[S, W]``, as the cache holds them.
        scale: float32, or a product of two: that is rounded once.
        softcap: Of scores: see `capped`.
        sink: One more score, whose value is nothing.

    A score s_j is off by e_j = gamma(W + 2) sum |q scale k_j|.  The softmax runs online over B
    spans of 64: the weight of position j is e^(s_j - m_1) e^(m_1 - m_2) ..., whose arguments are
    rounded differences that add up to D_j = m - s_j, and whose factors are at most B exponentials
    and B products.  So a weight is off by d_j = e_j + u D_j + (EXP + u) B, relative; what is
    flushed to zero is below e^-87.  The numerator adds S products and is rescaled B times, the
    denominator adds at most B + 8 in a row, and there is one quotient.  Both carry the errors of
    the weights.  All of these are below 1 %, so that their products are within a factor of 1.02.
    """
    q, keys, values = (v.astype(np.float64) for v in (q, keys, values))
    scale = float(scale)
    count, width = keys.shape
    spans = -(-count // 64) + 1  # a window may begin within one
    scores = keys @ (q * scale)
    off = gamma(width + 2) * (abs(keys) @ abs(q * scale))
    if softcap:
        scores, more = capped(scores, softcap)
        off = off + more
    if sink is not None:
        scores, off = np.append(scores, float(sink)), np.append(off, 0)
        values = np.append(values, np.zeros((1, values.shape[1])), axis=0)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    off = off + U * (scores.max() - scores) + (EXP + U) * spans
    assert off.max() < 0.01
    each = off + weights @ off + (count + 2 * spans + 9) * U
    bound = 1.02 * (weights * each) @ abs(values) + (EXP_FLUSHED + TINY) * abs(values).sum(axis=0)
    return weights @ values, bound
