"""Convert gated delta nets to the layout of the DSP: packed states, and a row for each token.

dsp/kernels/delta.h describes the states and the rows.  This module uses only numpy.  Shapes: N
sequences, T tokens, K heads of k, H heads of v, W width; Wk and Wv are W padded to multiples of 64
and 32.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from npurt.device.delta import EMPTY_ROW, I32, DeltaNet, state_integers
from npurt.device.device import F32
from npurt.hexagon.fastrpc.rpcmem import aligned

BIAS = 157  # added to stored exponents
MAX_EXPONENT = 900  # 2^900 is infinite in float32 and finite in float64

# Standard error of a product of q or k with a row of the state, per unit of both norms.  The
# greatest element of q and k has at least 10 bits, and d has 16 bits, so the greatest element of a
# row that consists of one update d k^T has at least 25 bits.  The kernel does not read the lowest
# 16 bits: 9 bits remain.  Rounding them to nearest causes a standard error of 2^-10 / sqrt(3) of
# the greatest element, which is at most the norm.  The rounding of q and k causes an error of the
# same size.  Usually 13 bits remain.
ERROR = 2.0**-10

# Absolute error of an element of k or q if all elements are below 2^-87.  The unit of their
# mantissas is then 2^-110 (delta_prepare.h: LEAST_TOP), and narrow() rounds to multiples of at most
# 2^13 such units, an error of 2^-98.  Gains that divide k can double the error.
ABSOLUTE_ERROR = 2.0**-97


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """The shape of a net, without the number of tokens."""

    sequences: int
    k_heads: int
    heads: int
    width: int
    gates: bool  # True: a decay for each element of k; False: one decay per head
    grouped: bool
    scale: float

    @property
    def along_k(self) -> int:
        """Floats of one head of q or k in a row."""
        return -(-self.width // 64) * 64

    @property
    def along_v(self) -> int:
        """Floats of one head of v in a row."""
        return -(-self.width // 32) * 32

    @property
    def words(self) -> int:
        """int32 words of one head's state."""
        return self.along_k * self.along_v + self.along_k // 2 + 3 * self.along_v + self.along_k

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of all sequences and heads."""
        return 4 * self.sequences * self.heads * self.words

    @property
    def parts(self) -> list[int]:
        """Floats of q, k, v, beta and decay in a row of x."""
        keys, few = self.k_heads * self.along_k, aligned(4 * self.heads) // 4
        values = self.heads * self.along_v
        return [keys, keys, values, few, self.heads * self.along_k if self.gates else few]

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of a row of x, and bytes of a row of y."""
        return 4 * sum(self.parts), 4 * self.heads * self.along_v


def shape_of(net: DeltaNet) -> DeltaShape:
    """Return the shape of *net*."""
    n, _, h, w = net.v.shape
    gates = net.decay.shape[-1] > 1
    return DeltaShape(n, net.k.shape[2], h, w, gates, net.grouped, net.scale)


class DeltaRows(NamedTuple):
    """Views of the parts of rows of x: the arrays of `DeltaNet`, with heads padded."""

    q: F32
    k: F32
    v: F32
    beta: F32  # [N, T, H]
    decay: F32

    @classmethod
    def of(cls, x: F32, shape: DeltaShape) -> Self:
        """Return the parts of *x* ``[N, T, sum of parts]``."""
        q, k, v, beta, decay = np.split(x, np.cumsum(shape.parts)[:-1], axis=2)
        q, k, v = _heads(q, shape.k_heads), _heads(k, shape.k_heads), _heads(v, shape.heads)
        decay = _heads(decay, shape.heads) if shape.gates else decay[..., : shape.heads, None]
        return cls(q, k, v, beta[..., : shape.heads], decay)

    def write(self, net: DeltaNet) -> None:
        """Write the tokens of *net* and their padding."""
        width = net.v.shape[3]
        for part, values in ((self.q, net.q), (self.k, net.k), (self.v, net.v)):
            part[..., :width] = values
            if width < part.shape[3]:
                part[..., width:] = 0
        self.beta[...] = net.beta
        gates = net.decay.shape[3]
        self.decay[..., :gates] = net.decay
        if gates < self.decay.shape[3]:
            # a zero decay would keep the padding rows after all others have decayed
            self.decay[..., gates:] = net.decay[..., -1:]


def results(y: F32, shape: DeltaShape) -> F32:
    """View rows of y ``[N, T, H * Wv]`` as results ``[N, T, H, W]``."""
    return _heads(y, shape.heads)[..., : shape.width]


def net_of(x: F32, shape: DeltaShape) -> DeltaNet:
    """Return rows of x ``[N, T, floats]`` as a net, without a state and with its own results."""
    row, w = DeltaRows.of(x, shape), shape.width
    decay = row.decay[..., :w]
    return DeltaNet(
        q=row.q[..., :w],
        k=row.k[..., :w],
        v=row.v[..., :w],
        decay=decay,
        beta=row.beta,
        out=np.empty(row.v[..., :w].shape, np.float32),
        state=np.empty(0, np.float32),
        scale=shape.scale,
        grouped=shape.grouped,
    )


def _heads(rows: F32, heads: int) -> F32:
    """View ``[N, T, heads * width]`` as ``[N, T, heads, width]``."""
    return rows.reshape(*rows.shape[:2], heads, rows.shape[2] // heads)


def passed(state: F32, rows: Iterable[F32], shape: DeltaShape) -> F32:
    """Return *state* ``[N, H, W, W]`` advanced by the tokens of *rows* of x, in float64.

    The kernel approximates this result.  It is used for states whose device was lost.
    """
    s, share = state.astype(np.float64), shape.heads // shape.k_heads
    heads = np.arange(shape.heads)
    of_k = heads // share if shape.grouped else heads % shape.k_heads
    for part in rows:
        row = DeltaRows.of(part, shape)
        for t in range(part.shape[1]):
            k = row.k[:, t, of_k, None, : shape.width].astype(np.float64)
            v = row.v[:, t, :, : shape.width, None]
            s *= np.exp(row.decay[:, t, :, None, : shape.width].astype(np.float64))
            s += row.beta[:, t, :, None, None] * (v - (s * k).sum(-1, keepdims=True)) * k
    return s.astype(np.float32)


def pack_state(state: F32, shape: DeltaShape, words: I32) -> None:
    """Write *state* ``[N, H, W (of v), W (of k)]`` to *words* ``[N * H, shape.words]``.

    Each row of v gets the exponent of its greatest element, whose integer has 30 bits.

    Raises:
        NumericsError: *state* holds NaN or infinity.
    """
    words[...] = words_of(state_integers(state), shape)


def unpack_state(words: I32, shape: DeltaShape, state: F32) -> None:
    """Write the values of *words* to *state*; the inverse of `pack_state`."""
    for i, head in enumerate(np.ndindex(state.shape[:2])):  # one head fits into the cache
        values = _unpacked(words[i : i + 1], shape)
        with np.errstate(over="ignore", under="ignore"):
            state[head] = values[: shape.width, : shape.width]


def _unpacked(words: I32, shape: DeltaShape) -> npt.NDArray[np.float64]:
    """Return the state ``[Wv, Wk]`` of one head from its words ``[1, shape.words]``."""
    parts = _parts(words, shape)
    lanes = parts.integers.transpose(0, 3, 5, 1, 4, 2)
    values: npt.NDArray[np.float64] = lanes.astype(np.float64, order="C").reshape(
        shape.along_v, shape.along_k
    )
    values *= np.ldexp(1.0, -parts.shifts).T
    np.floor(values, out=values)
    k = parts.k.transpose(0, 1, 3, 2).astype(np.float64).reshape(1, -1)
    values += (parts.d >> 16).T * k
    gains = (parts.gains if shape.gates else parts.gains[:, :1]) / 2.0**31
    values *= np.ldexp(gains, np.minimum(parts.exponents - BIAS, MAX_EXPONENT).T)
    return values


def exact_state(words: I32, shape: DeltaShape) -> I32:
    """Return the state of *words* as the array of integers that `npurt.device.delta` describes.

    Apply the pending update first, as the kernel does before the next token.
    """
    parts, w = _parts(words, shape), shape.width
    # from [pair, 32, block, 2, 32] to [v: block, 32][k: pair, 2, 32]
    lanes = parts.integers.transpose(0, 3, 5, 1, 4, 2).astype(np.int64)
    integers = lanes.reshape(len(words), shape.along_v, shape.along_k)
    shifts = parts.shifts[..., None]
    integers = integers << np.maximum(-shifts, 0) >> np.maximum(shifts, 0)
    k = parts.k.transpose(0, 1, 3, 2).reshape(len(words), 1, shape.along_k).astype(np.int64)
    integers += (parts.d >> 16).astype(np.int64)[..., None] * k
    exact = np.empty((len(words), w, w + 2), np.int32)
    exact[..., :w] = integers[:, :w, :w]
    exact[..., w] = parts.exponents[:, :w] - BIAS
    exact[..., w + 1] = parts.gains[:, :w] if shape.gates else parts.gains[:, :1]
    return exact.reshape(shape.sequences, shape.heads, w, w + 2)


def words_of(exact: I32, shape: DeltaShape) -> I32:
    """Return words ``[N * H, shape.words]`` that hold *exact*; the inverse of `exact_state`."""
    w = shape.width
    heads = exact.reshape(-1, w, w + 2)
    words = np.zeros((len(heads), shape.words), np.int32)
    parts = _parts(words, shape)
    integers = np.zeros((len(heads), shape.along_k, shape.along_v), np.int32)
    integers[:, :w, :w] = heads[..., :w].transpose(0, 2, 1)
    parts.integers[...] = _in_pairs(integers, shape)
    parts.exponents[:] = EMPTY_ROW + BIAS
    parts.exponents[:, :w] = heads[..., w] + BIAS
    parts.gains[:] = heads[:, -1:, w + 1]  # padding along k has the gain of the last element
    if shape.gates:
        parts.gains[:, :w] = heads[..., w + 1]
    return words


class _StateWords(NamedTuple):
    """Views of the words of states.  The update k d of the last token is pending."""

    integers: Any  # [states, pairs of vectors, 32, blocks, 2, 32]
    k: Any  # int16 [states, pairs of vectors, 32, 2]
    d: I32  # [states, Wv]; both halves of a word hold the same 16 bits
    shifts: I32  # [states, Wv]
    exponents: I32  # [states, Wv]
    gains: I32  # [states, Wk]


def _parts(words: I32, shape: DeltaShape) -> _StateWords:
    v, k = shape.along_v, shape.along_k
    ends = np.cumsum([k * v, k // 2, v, v, v])
    integers, pairs, d, shifts, exponents, gains = np.split(words, ends, axis=1)
    integers = integers.reshape(len(words), k // 64, 32, v // 32, 2, 32)
    rows = pairs.view(np.int16).reshape(len(words), k // 64, 32, 2)
    return _StateWords(integers, rows, d, shifts, exponents, gains)


def _in_pairs(values: npt.NDArray[Any], shape: DeltaShape) -> Any:
    """View ``[states, Wk, Wv]`` in the order of `_StateWords.integers`."""
    split = values.reshape(len(values), shape.along_k // 64, 2, 32, shape.along_v // 32, 32)
    return split.transpose(0, 1, 3, 4, 2, 5)
