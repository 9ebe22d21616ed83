"""Integer model of the Hexagon's gated delta net in numpy; every build must equal it bit for bit.

Written from the comments of dsp/kernels/delta.h and its parts, one token of one head at a time;
exponents here have no bias and integers have 64 bits; asserts check the ranges.
"""

from dataclasses import dataclass

import numpy as np

I64 = np.int64
ONE = 1 << 31
BIAS = 157
LOG2_E = 1549082005  # / 2^30
POWER = (372130563, 64485313, 7449563, 645455, 44932, 2595)  # of g: 2^(g / 2) - 1, Q30


@dataclass
class State:
    """A head: S[k][v] = integers[k][v] * gain[k] / 2^31 * 2^exponents[v]."""

    integers: np.ndarray  # [Wk, Wv]
    gain: np.ndarray  # [1], or [Wk] with a decay for each element of k
    exponents: np.ndarray  # [Wv]


def signed(words):
    """Return the lower half of each word as a signed integer."""
    return (words & 0xFFFF ^ 0x8000) - 0x8000


def state_of(words, width, gates):
    """Return the state in the int32 words of a head, with the pending update applied."""
    words = words.astype(I64)
    blocks, parts = -(-width // 32), -(-width // 64)
    lengths = [64 * parts * 32 * blocks, 32 * parts, *3 * [32 * blocks]]
    rest, k, d, shifts, exponents, gain = np.split(words, np.cumsum(lengths))
    integers = np.zeros((64 * parts, 32 * blocks), I64)
    vectors = rest.reshape(-1, 32)
    at = 0
    for part in range(parts):
        for j in range(32):
            word = k[32 * part + j]
            rows = (64 * part + j, signed(word)), (64 * part + 32 + j, signed(word >> 16))
            for block in range(blocks):
                lanes = slice(32 * block, 32 * block + 32)
                for row, of_row in rows:
                    kept = shifted(vectors[at], shifts[lanes])
                    integers[row, lanes] = kept + of_row * signed(d[lanes])
                    at += 1
    assert at == len(vectors)
    return State(integers, gain if gates else gain[:1], exponents - BIAS)


# --- numbers -------------------------------------------------------------------------------------


def mul(a, b):
    """Return a b / 2^31; halves round up."""
    product = np.asarray(a, I64) * np.asarray(b, I64) + (1 << 30) >> 31
    assert abs(product).max(initial=0) <= 2**31 - 1
    return product


def shifted(a, by):
    """Return a / 2^by, rounded down; *by* is limited to 31, and a negative *by* shifts left."""
    by = np.minimum(by, 31)
    return np.where(by >= 0, a >> np.maximum(by, 0), a << np.maximum(-by, 0))


def headroom(a):
    """Return how many bits a number can be shifted left within 32 bits; 0 for the number 0."""
    magnitude = np.where(a < 0, -1 - a, a).astype(np.float64)
    return np.where(a == 0, 0, 31 - np.frexp(magnitude)[1])


def split(x):
    """Return sign, 24-bit mantissa and exponent of float32 numbers; 0 for subnormal numbers."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(I64)
    exponent = bits >> 23 & 255
    mantissa = np.where(exponent > 0, bits & 0x7FFFFF | 0x800000, 0)
    return np.where(bits >> 31, -1, 1), mantissa, exponent - 150


def number(x):
    """Return the signed 31-bit mantissa and the exponent."""
    sign, mantissa, exponent = split(x)
    return sign * mantissa << 7, exponent - 7


def half_sum(a, b):
    """Return (a + b) / 2 in the coarser of the units of a and b, doubled."""
    unit = np.maximum(a[1], b[1])
    return shifted(a[0], unit - a[1]) + shifted(b[0], unit - b[1]) >> 1, unit + 1


def half_difference(a, b):
    """Return (a - b) / 2 in the coarser of the units of a and b, doubled."""
    unit = np.maximum(a[1], b[1])
    return shifted(a[0], unit - a[1]) - shifted(b[0], unit - b[1]) >> 1, unit + 1


def to_float(mantissa, exponent):
    """Round to float32, halves away from zero; infinite or 0 beyond the range of float32."""
    magnitude = abs(mantissa)
    shift = headroom(magnitude)
    rounded = ((magnitude << shift) + 64 >> 7).astype(np.float64)
    value = np.ldexp(rounded, np.clip(exponent - shift + 7, -4000, 4000))
    value[value >= 2.0**128] = np.inf
    value[value < 2.0**-126] = 0
    return np.copysign(value, mantissa).astype(np.float32)


# --- a token -------------------------------------------------------------------------------------


def decayed(gain, decay):
    """Return the gain times e^decay, and the power of two split off from the product."""
    mantissa, exponent = number(decay)
    y = mul(mantissa, LOG2_E)  # log2(e) x / 2^(bits - 31), bits being what comes before the point
    bits = np.minimum(exponent + 32, 11)
    whole = shifted(y, 30 - bits) + 1 >> 1
    part = shifted(y, -np.maximum(bits + 1, -31)) & (2**32 - 1)
    part = np.where(part >= ONE, part - 2 * ONE, part)  # of y - whole, -1/2..1/2
    power = np.full_like(part, POWER[-1])
    for coefficient in POWER[-2::-1]:
        power = mul(power, part) + coefficient
    wide = mul(gain, mul(power, part) + (1 << 30))
    return wide << headroom(wide), headroom(wide) - whole - 1


def inverse(gain):
    """Return an approximation of 2^61 / gain."""
    y = 3031741621 - mul(gain, 2021161080)
    for _ in range(2):
        error = (1 << 30) - mul(gain, y)
        y = np.minimum(y + mul(y, error << 1), ONE - 1)
    return y


def operand(sign, size, exponent):
    """Return integers and the exponent of their unit."""
    top = max(int(exponent.max()), 40 - 150)
    size = size >> np.minimum(top - exponent, 31)
    pairs = size.reshape(-1, 2, 32).sum(axis=1).max(axis=0)  # rows 64 p + j and 64 p + 32 + j
    maximum = max(int(pairs[:16].sum()), int(pairs[16:].sum()))
    shift = max((maximum + (maximum >> 12) + 1).bit_length() - 17, 10)
    integers = sign * (size + (1 << shift - 1) >> shift)
    assert abs(integers).max() <= 1 << 14
    assert abs(integers).reshape(-1, 2, 2, 16).sum(axis=(1, 3)).max() < 1 << 17
    return integers, top + shift


def quarter_dot(a, b):
    """Return a.b / 4 for each lane."""
    return ((a * b).reshape(-1, 32).sum(axis=0) >> 2).sum()


def read(h, k):
    """Sums over rows, a quarter of those of each 32."""
    sums = (h * k[:, None]).reshape(-1, 2, 2, 16, h.shape[1]).sum(axis=(1, 3))
    assert abs(sums).max() < ONE
    return (sums >> 2).sum(axis=(0, 1))


def advance(state, q, k, v, decay, beta, scale):
    """Advance *state* by a token; return out, float32 [Wv].  All are padded with zeros."""
    gates = len(state.gain) > 1
    state.gain, step = decayed(state.gain, decay)
    minimum = step.min()
    rows = shifted(state.integers, (step - minimum)[:, None])
    exponents = state.exponents - minimum
    sign, size, exponent = split(k)
    gain = state.gain if gates else np.array([1 << 30])
    at_k = operand(sign, mul(size, gain) if gates else size, exponent)
    update, unit = at_k
    if gates:
        update, unit = operand(sign, mul(size, inverse(gain)), exponent)
    unit = unit + 1 if gates else unit
    sign, size, exponent = split(q)
    at_q = operand(sign, mul(size, gain) if gates else size, exponent)

    h = rows + (1 << 15) >> 16
    assert abs(h).max() <= (1 << 14) + 1
    u, w = read(h, at_k[0]), read(h, at_q[0])
    scale_, beta_ = number(np.float32([scale])), number(np.float32([beta]))
    w_gain, divided = scale_[0], beta_[0]
    if not gates:
        u, w_gain = mul(u, state.gain), mul(state.gain, scale_[0])
        divided = mul(beta_[0], inverse(state.gain))

    error = half_difference(number(v), (u, exponents + at_k[1] + 18))
    d = mul(error[0], beta_[0]), error[1] + beta_[1] + 31
    change = mul(error[0], divided), d[1] + unit + (not gates)  # times integers of k
    coming = unit_of(h, exponents, change)
    halves = shifted(change[0], coming - change[1] - 1) + 1 >> 1
    halves = np.clip(halves, -(1 << 15), (1 << 15) - 1)
    state.integers = shifted(rows, coming - exponents) + update[:, None] * halves
    state.exponents = coming
    assert abs(state.integers).max() <= (1 << 30) + (1 << 16)

    dot = mul(quarter_dot(update, at_q[0]), scale_[0])
    of_d = mul(d[0], dot), d[1] + unit + at_q[1] + scale_[1] + 2 + 2 * 31
    return to_float(*half_sum((mul(w, w_gain), exponents + at_q[1] + scale_[1] + 31 + 18), of_d))


def unit_of(h, exponents, change):
    """Return exponents in which both the rows and their updates fit."""
    maximum = np.maximum(h.max(axis=0), ~h.min(axis=0)) << 16 | 0xFFFF
    size, unit = abs(change[0]) | 1, change[1] + 14
    both = half_sum((maximum, exponents), (size, unit))
    return np.maximum(both[1] - 1 - headroom(both[0] + 2), unit - headroom(size)) + 2


# --- nets ----------------------------------------------------------------------------------------


def padded(x, width, fill=0):
    return np.concatenate([x, np.full(width - len(x), fill, np.float32)])


def run(net, words):
    """Run *net* from the words of its states ``[N * H, ...]``: return ``[N, T, H * Wv]``; those."""
    sequences, tokens, heads, width = net.v.shape
    k_heads = net.k.shape[2]
    gates = net.decay.shape[3] > 1
    along_k, along_v = -(-width // 64) * 64, -(-width // 32) * 32
    out = np.zeros((sequences, tokens, heads, along_v), np.float32)
    states = []
    for n in range(sequences):
        for h in range(heads):
            at = h // (heads // k_heads) if net.grouped else h % k_heads
            state = state_of(words[len(states)], width, gates)
            for t in range(tokens):
                decay = net.decay[n, t, h]
                decay = padded(decay, along_k, decay[-1]) if gates else decay
                q, k = (padded(x[n, t, at], along_k) for x in (net.q, net.k))
                v = padded(net.v[n, t, h], along_v)
                out[n, t, h] = advance(state, q, k, v, decay, net.beta[n, t, h], net.scale)
            states.append(state)
    return out.reshape(sequences, tokens, -1), states
