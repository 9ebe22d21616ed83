"""Reference results of the ops of a gated delta net, in float64, and error bounds.

As in `tests.oracle`, bounds are derived and never tuned.
"""

import numpy as np

from tests.oracle import EXP, EXP_FLUSHED, TINY, U, gamma


def sigmoid(x):
    """Return 1 / (1 + e^-x) and its bound, derived as in `tests.oracle.silu`."""
    reference = 1 / (1 + np.exp(-x))
    return reference, 1.01 * (1.5 * EXP + 4 * U) * reference + EXP_FLUSHED


def softplus(x):
    """Return ln(1 + e^x) and its bound.

    With t = e^-|x| the result is max(x, 0) + ln(1 + t), and ln(1 + t) is twice the artanh of
    t / (2 + t).  The bound of ln(1 + t) adds the error of the exponential and these roundings: two
    of the
    quotient, those of the square, those of eight steps of a series whose terms shrink ninefold
    (less than 2 in all), and that of the product.  The final sum adds one rounding.  The omitted
    terms of the series are 2e-9 of ln(1 + t), which is less than U.
    """
    reference = np.logaddexp(0, x)
    second = np.log1p(np.exp(-abs(x)))
    return reference, 1.01 * (EXP + 9 * U) * second + U * reference + EXP_FLUSHED


def silu(x):
    """Return x / (1 + e^-x) and its bound, derived as in `tests.oracle.silu`."""
    reference = x / (1 + np.exp(-x))
    return reference, 1.01 * (1.5 * EXP + 3 * U) * abs(reference) + abs(x) * EXP_FLUSHED + TINY


def convolution(seen, weight):
    """Return the silu ``[T, C]`` of a causal convolution of *seen* ``[J - 1 + T, C]``; its bound.

    J is the kernel size.  The error of a sum of J products is at most gamma(J) times the sum of
    their absolute values, and the slope of silu is at most 1.1.
    """
    seen, weight = seen.astype(np.float64), weight.astype(np.float64)
    kernel_size = len(weight)
    rows = len(seen) - kernel_size + 1
    sums = sum(seen[j : j + rows] * weight[j] for j in range(kernel_size))
    sizes = sum(abs(seen[j : j + rows] * weight[j]) for j in range(kernel_size))
    reference, bound = silu(sums)
    return reference, bound + 1.1 * (gamma(kernel_size) * sizes + kernel_size * TINY)


def unit(x, bound, eps):
    """Return *x* over ``sqrt(sum x^2 + eps)`` along the last axis, and its bound.

    The error of the length consists of the errors of the elements, by Cauchy-Schwarz, and of the
    roundings of a sum of squares in 16 lanes and four steps, which the root halves.  Two more
    roundings and the rounding of the product follow.
    """
    length = np.sqrt((x**2).sum(axis=-1, keepdims=True) + eps)
    off = np.sqrt((bound**2).sum(axis=-1, keepdims=True)) / length
    roundings = x.shape[-1] // 16 + 8
    return x / length, 1.02 * (bound / length + abs(x) / length * (off + gamma(roundings)))


def gate(x, z, weight, eps):
    """Return ``x / rms(x) * weight * silu(z)`` per head, and its bound; x, z ``[T, H, W]``."""
    x, z, weight = (v.astype(np.float64) for v in (x, z, weight))
    normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
    squares = x.shape[-1] // 16 + 6
    off = gamma(squares // 2 + 6) * abs(normed) + TINY
    opened, wrong = silu(z)
    return normed * opened, 1.01 * (
        off * (abs(opened) + wrong) + (wrong + U * abs(opened)) * abs(normed)
    ) + TINY


def delta(net):
    """Return the result of *net* ``[N, T, H, W]``, its last state, and the bounds of both.

    Let s be a row of S, and e the norm of its error.  One token changes s to ``a s + d k`` with ``d
    = beta (v - a s.k)``.  Without rounding, this step changes the error e to at most e max(a)
    max(1, |1 - beta |k|^2|), because ``I - beta k k^T`` leaves every direction orthogonal to k
    unchanged.  The roundings of the token add to that.  Let n = W / 16 + 4 be the roundings of a
    sum of products, and x = EXP + 3 U the error of a, a k and a q:

    - each product with S has an error of p = (gamma(n) + x) |s| max(a) times |k| or |q|;
    - d has an error of beta p + 3 U |d|, plus three roundings of v and a s.k before they cancel;
    - the new row has the error of d times |k|, plus x max(a) |s|, plus U times the row;
    - the result has an error of p, plus the error of d and gamma(n) d, both times |k||q|, plus e of
      the row, plus three roundings.
    """
    q, k, v, decay, beta = (
        getattr(net, name).astype(np.float64) for name in ("q", "k", "v", "decay", "beta")
    )
    heads, width = v.shape[2:]
    k_heads = k.shape[2]
    of = np.arange(heads) // (heads // k_heads) if net.grouped else np.arange(heads) % k_heads
    q, k = q[:, :, of], k[:, :, of]
    s = net.state.astype(np.float64)  # [N, H, v, k]
    e = np.zeros(s.shape[:3])
    out, bound = np.empty_like(v), np.empty_like(v)
    n, x = gamma(width // 16 + 4), EXP + 3 * U
    for t in range(v.shape[1]):
        a, kt, qt = np.exp(decay[:, t])[:, :, None, :], k[:, t], q[:, t]
        b, k_size, q_size = (z[..., None] for z in (beta[:, t], norm(kt), norm(qt)))
        maximum = a.max(axis=-1)
        size = maximum * (norm(s) + e)
        p = (n + x) * size
        before = np.einsum("nhvk,nhk->nhv", s * a, kt)
        d = b * (v[:, t] - before)
        d_off = b * (p * k_size + 3 * U * (abs(v[:, t]) + size * k_size)) + 3 * U * abs(d)
        grown = e * maximum * np.maximum(1, abs(1 - b * k_size**2))
        s = s * a + d[..., None] * kt[:, :, None, :]
        out[:, t] = np.einsum("nhvk,nhk->nhv", s, qt) * net.scale
        kq = k_size * q_size
        rounded = p * q_size + d_off * kq + (n + 3 * U) * (abs(d) * kq + size * q_size)
        bound[:, t] = net.scale * (grown * q_size + rounded) + EXP_FLUSHED * (1 + abs(out[:, t]))
        e = grown + d_off * k_size + x * size + U * norm(s) + EXP_FLUSHED
    return out, s, 1.01 * bound, 1.01 * e[..., None] + np.zeros_like(s)


def norm(x):
    return np.sqrt((x**2).sum(axis=-1))
