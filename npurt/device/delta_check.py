"""Verify gated delta nets: recompute one head in float64 and compare.

The bound.  The error of a row s of S is a vector of norm at most e.  A token changes the row to
``a s + d k`` with ``d = beta (v - a s.k)``.  In exact arithmetic this step turns an error e into at
most ``e max(a) max(1, |1 - beta |k|^2|)``, because ``I - beta k k^T`` changes only the direction of
k.  The device also rounds.  Products of a row with k or q have the error eps |s| |k|.  d and the
values computed from d have the relative error eps, and the new row has the error eps times its
norm.  `DeltaNets.delta_error` contains eps and g, the absolute error of elements of k and q.

Small numbers.  As in `verify`, each operation may have an error of h = 2^-126 times its factor, and
a decay below h counts as 0.  The error of ``a x.y``, for vectors x and y of W elements, is
``small(x, y) = h (2 W + sqrt(W) (|x| + |y|) + |x| |y|)``.  The error of d is
h (3 + |beta| + |v| + |a s| |k|).  The error of the new row is h (4 sqrt(W) + |s| + |d| + |k|) plus
g sqrt(W) |d|.  The result is ``a s.q + d k.q``.  Each of these two terms may be far larger than
their sum, and each adds an error of g sqrt(W) times itself.

Large numbers.  A row may overflow float32 when its state, or an intermediate value, reaches 2^127.
The check ignores the row from then on.  It also ignores results that may overflow.

If one head of a layer is wrong, the check finds the error only if it chose this head.
"""

import math
from dataclasses import replace

import numpy as np

from npurt.device.delta import DeltaError, DeltaNet
from npurt.device.device import F32, F64, FLUSHED, LAMBDA

OVERFLOW = 2.0**127


@np.errstate(all="ignore")  # the device may have written any bits, and states may overflow
def is_right(net: DeltaNet, head: int, before: F32, after: F32, error: DeltaError) -> bool:
    """Return whether the result and the state of a head of *net* are correct within *error*.

    Args:
        net: The net after its run; its state is not used.
        head: The head, chosen at random.
        before: The head's state before the run, ``[N, 1, W, W]``.
        after: The head's state after the run, in the same shape.
        error: `DeltaNets.delta_error`.
    """
    out, state, out_bound, state_bound = recompute(net, head, before, error)
    near = abs(net.out[:, :, head] - out) <= out_bound
    kept = _norm(after[:, 0] - state) <= state_bound
    return bool((near | np.isinf(out_bound)).all() and (kept | np.isinf(state_bound)).all())


def _head_of(net: DeltaNet, head: int, state: F32) -> DeltaNet:
    """Return a net of one head of *net*, with *state* ``[N, 1, W, W]`` as its first state."""
    heads, k_heads = net.v.shape[2], net.k.shape[2]
    at = head // (heads // k_heads) if net.grouped else head % k_heads
    this, of_k = slice(head, head + 1), slice(at, at + 1)
    return replace(
        net,
        q=net.q[:, :, of_k],
        k=net.k[:, :, of_k],
        v=net.v[:, :, this],
        decay=net.decay[:, :, this],
        beta=net.beta[:, :, this],
        out=net.out[:, :, this],
        state=state,
    )


@np.errstate(all="ignore")
def recompute(
    net: DeltaNet, head: int, before: F32, error: DeltaError
) -> tuple[F64, F64, F64, F64]:
    """Return out ``[N, T, W]``, the state ``[N, W, W]`` and the error bounds of both, for one head.

    The bound of the state limits the norm of the error of each row.  Callers ignore values with an
    infinite bound.
    """
    net, eps = _head_of(net, head, before), LAMBDA * error.relative
    fields = (net.q[:, :, 0], net.k[:, :, 0], net.v[:, :, 0], net.decay[:, :, 0])
    q, k, v, decay = (np.asarray(field, np.float64) for field in fields)
    beta = net.beta.astype(np.float64)
    s = net.state[:, 0].astype(np.float64)
    root = math.sqrt(s.shape[-1])
    g, scale = error.absolute * root, abs(net.scale)
    size = _norm(s)
    e = eps * size + FLUSHED * root
    out, bound = np.empty_like(v), np.empty_like(v)
    for t in range(v.shape[1]):
        a, kt, qt = np.exp(decay[:, t])[:, None], k[:, t], q[:, t]
        b, k_size, q_size = abs(beta[:, t]), _norm(kt)[:, None], _norm(qt)[:, None]
        maximum = a.max(axis=-1)
        row = np.maximum(maximum, 1) * (size + e)  # the larger of the norms of s and a s
        have = maximum * (size + e)
        s = s * a
        d = beta[:, t] * (v[:, t] - np.einsum("nvk,nk->nv", s, kt))
        d_size, v_size = abs(d), abs(v[:, t])
        d_off = b * (have * (eps * k_size + g) + _small(root, row, k_size))
        parts = v_size + have * k_size  # |v| + |a s| |k|
        d_off += eps * (d_size + b * v_size) + FLUSHED * (3 + b + parts)
        s = s + d[:, :, None] * kt[:, None]
        size = _norm(s)
        out[:, t] = np.einsum("nvk,nk->nv", s, qt) * net.scale
        grown = e * maximum * np.maximum(1, abs(1 - beta[:, t] * k_size**2))
        of_d = (d_off + eps * d_size) * k_size + d_size * g
        grown += of_d + FLUSHED * (4 * root + row + d_size + k_size)
        e = grown + eps * size
        made = np.maximum(have * np.maximum(1, k_size), b * parts)
        made = np.maximum(made, np.maximum(d_size * k_size, maximum))
        over = ~(np.maximum(made, size) + e < OVERFLOW)
        e[over] = grown[over] = np.inf
        both = have + b * parts * k_size
        off = (grown + eps * have) * q_size + both * g
        off += (1 + d_size) * _small(root, row + d_size * k_size, q_size)
        peak = np.maximum(both, k_size) * q_size * np.maximum(1, scale)
        off = scale * off + FLUSHED * (2 + both * q_size)
        bound[:, t] = np.where(np.maximum(peak, abs(out[:, t])) + off < OVERFLOW, off, np.inf)
    return out, s, bound, e


def _small(root: float, x: F64, y: F64) -> F64:
    """Return h (2 W + sqrt(W) (x + y) + x y) for the norms of two vectors of W elements."""
    return FLUSHED * (2 * root**2 + root * (x + y) + x * y)


def _norm(x: F64) -> F64:
    return np.asarray(np.sqrt((x**2).sum(axis=-1)))
