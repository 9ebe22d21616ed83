"""Verification of gated delta nets: one head, computed again in double.

The bound.  A row s of S is known to an error e, measured as a norm.  A token takes it to
``a s + d k`` with ``d = beta (v - a s.k)``; exactly applied to a row that is off by e, that is off
by at most ``e max(a) max(1, |1 - beta |k|^2|)``: ``I - beta k k^T`` keeps all directions but k.
The device rounds besides: its products of a row with k or q are off by p = eps |s| |k|, d and what
is made of it by eps of itself, and the new row by eps of its norm; `Device.delta_error` says eps.
A single wrong head of a layer is found with the chance that it is the one looked at.
"""

from dataclasses import replace

import numpy as np

from npurt.device import F32, F64, DeltaNet

LAMBDA = 8.0  # standard errors, as in `verify`


def is_right(net: DeltaNet, head: int, before: F32, after: F32, error: float) -> bool:
    """Say whether a head of *net* is right to *error*: its result and state.

    Args:
        net: After its run; its state is not looked at.
        head: Which, chosen by chance.
        before: The head's state before that, ``[N, 1, W, W]``.
        after: Its state now.
        error: `Device.delta_error`.
    """
    one = _head_of(net, head, before)
    out, state, out_bound, state_bound = _recompute(one, LAMBDA * error)
    with np.errstate(all="ignore"):  # what the device wrote may be any bits
        near = abs(one.out[:, :, 0] - out) <= out_bound
        return bool(near.all() and (_norm(after[:, 0] - state) <= state_bound).all())


def _head_of(net: DeltaNet, head: int, state: F32) -> DeltaNet:
    """Return the part of *net* that one head is, beginning with its *state* ``[N, 1, W, W]``."""
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


def _recompute(net: DeltaNet, eps: float) -> tuple[F64, F64, F64, F64]:
    """Return out ``[N, T, W]``, the state ``[N, W, W]``, and the bounds of both, of one head.

    That of the state is of the norms of its rows.
    """
    fields = (net.q[:, :, 0], net.k[:, :, 0], net.v[:, :, 0], net.decay[:, :, 0])
    q, k, v, decay = (np.asarray(field, np.float64) for field in fields)
    beta = net.beta.astype(np.float64)
    s = net.state[:, 0].astype(np.float64)
    e = eps * _norm(s)
    out, bound = np.empty_like(v), np.empty_like(v)
    for t in range(v.shape[1]):
        a, kt, qt = np.exp(decay[:, t])[:, None], k[:, t], q[:, t]
        b, k_size, q_size = beta[:, t], _norm(kt)[:, None], _norm(qt)[:, None]
        most = a.max(axis=-1)
        p = eps * most * (_norm(s) + e)
        s = s * a
        d = b * (v[:, t] - np.einsum("nvk,nk->nv", s, kt))
        d_off = abs(b) * p * k_size + eps * (abs(d) + abs(b * v[:, t]))
        grown = e * most * np.maximum(1, abs(1 - b * k_size**2))
        s = s + d[:, :, None] * kt[:, None]
        out[:, t] = np.einsum("nvk,nk->nv", s, qt) * net.scale
        of_d = (d_off + eps * abs(d)) * k_size
        bound[:, t] = abs(net.scale) * (grown + p + of_d) * q_size
        e = grown + of_d + eps * _norm(s)
    return out, s, bound, e


def _norm(x: F64) -> F64:
    return np.asarray(np.sqrt((x**2).sum(axis=-1)))
