"""Operands of `npurt.matmul` in every layout, and checks of their products."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests import oracle

LAYOUTS = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "reversed": lambda a: a[::-1, ..., ::-1].copy()[::-1, ..., ::-1],
    "every other": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "read-only": lambda a: read_only(a),
    "list": lambda a: a.tolist() if a.dtype == np.float64 else a,
}
layouts = st.sampled_from(list(LAYOUTS))
seeds = st.integers(0, 2**32 - 1)
SIGNATURE = "(m?,k),(k,n?)->(m?,n?)"
batches = hnp.mutually_broadcastable_shapes(
    signature=SIGNATURE, max_dims=2, min_side=0, max_side=4
).map(lambda shapes: shapes.input_shapes)


def read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def relaid(a, layout):
    """Return *a* with the same values in another layout, if it has enough axes."""
    return LAYOUTS[layout](a) if a.ndim > 1 and a.size else a


def numbers(seed, shape, dtype=np.float32):
    rng = np.random.default_rng(seed)
    if dtype == np.int8:
        return rng.choice([-128, -127, -1, 0, 1, 127, *rng.integers(-128, 128, 9)], shape).astype(
            np.int8
        )
    return rng.standard_normal(shape).astype(dtype)


def assert_float_product(y, a, b):
    """Check that *y* is float32 ``a @ b``, up to the rounding of K sums in any order."""
    a, b = (np.asarray(each).astype(np.float32).astype(np.float64) for each in (a, b))
    k = a.shape[-1]
    assert y.dtype == np.float32
    assert np.shape(y) == np.shape(a @ b)
    oracle.assert_within(
        np.asarray(y), a @ b, oracle.gamma(k) * (abs(a) @ abs(b)) + k * oracle.TINY
    )


def assert_packed_product(y, x, tensor):
    """Check that *y* is float32 ``x @ tensor.T`` as the kernels define it, for any batch shape."""
    *batch, k = x.shape
    assert (y.dtype, y.shape) == (np.float32, (*batch, tensor.shape[0]))
    if not x.size:
        assert not y.any()
        return
    judge = oracle.dense_matmul if tensor.format.block == 1 else oracle.integer_matmul
    reference, bound, *_ = judge(x.reshape(-1, k).astype(np.float32), tensor)
    oracle.assert_within(y.reshape(reference.shape), reference, bound)
