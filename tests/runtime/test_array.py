"""Tests of quantised weights in expressions of Python and numpy, with numpy as the oracle."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.testing import EIGHT_BITS

DEVICES = ["cpu", "numpy", "hexagon:sim", "rknpu:sim"]
K, N = 64, 48


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", params=DEVICES)
def packed(request):
    """Return a weight ``[K, N]`` on each device in turn."""
    return npurt.pack(numbers(0, K, N), "q8_0", device=request.param)


@pytest.fixture(scope="module")
def weight():
    """Return the same weight on the CPU."""
    return npurt.pack(numbers(0, K, N), "q8_0", device="cpu")


def assert_is(form, a, w):
    """Check that *form* of a and w is float32, and equals numpy's up to rounding to 8 bits.

    The squared error is compared with the sum of squared terms, which is the same form applied to
    the squares of both operands.
    """
    values = w.dequantize().astype(np.float64)
    a = np.asarray(a)
    wide = a.astype(np.float64)
    wanted, terms = form(wide, values), form(wide**2, values**2)

    y = form(a, w)

    assert (y.dtype, np.shape(y)) == (np.float32, np.shape(wanted))
    assert ((y - wanted) ** 2).sum() <= EIGHT_BITS * terms.sum()


def flat(a):
    return a.reshape(-1, K)


def turned(a):
    return a.swapaxes(-1, -2) if a.ndim > 1 else a


# Forms of a [..., K] and w [K, N], each of which computes a @ w or its transpose.
FORMS = {
    "a @ w": operator.matmul,
    "w.T @ b": lambda a, w: w.T @ turned(a),
    "npurt.matmul": lambda a, w: (np if isinstance(w, np.ndarray) else npurt).matmul(a, w),
    "matmul": np.matmul,
    "matmul of w.T": lambda a, w: np.matmul(w.T, turned(a)),
    "dot": np.dot,
    "dot of w.T": lambda a, w: np.dot(w.T, turned(a)),
    "inner": lambda a, w: np.inner(a, w.T),
    "inner of w.T": lambda a, w: np.inner(w.T, a),
    "tensordot": lambda a, w: np.tensordot(a, w, 1),
    "tensordot of axes": lambda a, w: np.tensordot(a, w, ([a.ndim - 1], [0])),
    "tensordot of w": lambda a, w: np.tensordot(w, a, (0, -1)),
    "tensordot of w.T": lambda a, w: np.tensordot(w.T, a.T, 1),
    "einsum": lambda a, w: np.einsum("...k,kn->...n", a, w),
    "einsum of w.T": lambda a, w: np.einsum("nk, ...k", w.T, a),
    "multi_dot": lambda a, w: np.linalg.multi_dot([flat(a), w]),
    "multi_dot of three": lambda a, w: np.linalg.multi_dot([flat(a), w, np.eye(N, 3)]),
    "linalg.matmul": lambda a, w: np.linalg.matmul(a, w),
    "linalg.tensordot": lambda a, w: np.linalg.tensordot(a, w, axes=1),
    "vecmat": lambda a, w: np.vecmat(a, w),
    "matvec": lambda a, w: np.matvec(w.T, a),
    "matrix_transpose": lambda a, w: a @ np.matrix_transpose(w.T),
    "transpose": lambda a, w: a @ np.transpose(w.T),
    "transpose of axes": lambda a, w: a @ np.transpose(w.T, (1, 0)),
}
NEW = {  # in numpy 2
    "linalg.matmul": hasattr(np.linalg, "matmul"),
    "linalg.tensordot": hasattr(np.linalg, "tensordot"),
    "vecmat": hasattr(np, "vecmat"),
    "matvec": hasattr(np, "matvec"),
    "matrix_transpose": hasattr(np, "matrix_transpose"),
}
FORMS = {name: form for name, form in FORMS.items() if NEW.get(name, True)}


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_product_runs_once_on_the_device_of_the_weight(packed, name, lead):
    before = calls(packed)

    assert_is(FORMS[name], numbers(1, *lead, K), packed)

    assert calls(packed) == before + 1


def calls(w):
    rows = w.products.report().rows
    assert {row.actual for row in rows} <= {w.device}
    return sum(row.calls for row in rows)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_product_takes_a_qtensor(name):
    w = QTensor.quantize(numbers(0, N, K), "q8_0").T

    assert_is(FORMS[name], numbers(1, 3, K), w)


LETTERS = "abcd"


@st.composite
def einsums(draw):
    """Return subscripts, whether a comes first, the shape of a, and whether w is transposed."""
    lead = draw(st.text(LETTERS, max_size=3))
    place = draw(st.integers(0, len(lead)))
    of_a = lead[:place] + "k" + lead[place:]
    shape = [K if c == "k" else "abcd".index(c) + 2 for c in of_a]
    if draw(st.booleans()):
        at = draw(st.sampled_from([0, len(of_a)]))
        of_a = of_a[:at] + "..." + of_a[at:]
        shape[at:at] = draw(st.lists(st.just(2), max_size=2))
    transposed = draw(st.booleans())
    of_w = "nk" if transposed else "kn"
    kept = draw(st.permutations(sorted(set(lead) | {"n"})))
    output = "".join(kept[: draw(st.integers(0, len(kept)))])
    terms = [of_a, of_w] if draw(st.booleans()) else [of_w, of_a]
    text = ",".join(terms)
    if draw(st.booleans()):
        text += "->" + ("..." if "..." in of_a else "") + output
    return text, terms[0] == of_a, shape, transposed


@settings(max_examples=150)
@given(einsums())
def test_einsum_takes_the_subscripts_that_numpy_takes(weight, given_):
    text, a_first, shape, transposed = given_

    def form(a, w):
        w = w.T if transposed else w
        return np.einsum(text, a, w) if a_first else np.einsum(text, w, a)

    assert_is(form, numbers(1, *shape), weight)


@given(st.sampled_from(["C", "F", "reversed", "every other"]), st.booleans())
def test_out_of_numpys_functions_is_written_and_returned(weight, layout, through_dot):
    function = np.dot if through_dot else np.matmul
    a = numbers(1, 4, K)
    memory = np.zeros((8, 2 * N), np.float32)
    out = {
        "C": np.empty((4, N), np.float32),
        "F": np.empty((4, N), np.float32, order="F"),
        "reversed": memory[3::-1, N - 1 :: -1],
        "every other": memory[::2, ::2],
    }[layout]

    assert function(a, weight, out=out) is out

    np.testing.assert_array_equal(out, npurt.matmul(a, weight))


def test_a_stack_and_out_meet_a_left_weight_as_numpys_dot_defines(weight):
    b = numbers(1, 2, 3, K, 5)
    out = np.empty((N, 2, 3, 5), np.float32)

    assert_is(lambda b, w: np.dot(w.T, b), b, weight)
    assert np.dot(weight.T, b, out=out) is out
    np.testing.assert_array_equal(out, np.dot(weight.T, b))


def test_a_product_in_place_is_written_to_its_left_operand():
    w = npurt.pack(numbers(0, K, K), "q8_0", device="cpu")
    a = numbers(1, 3, K)
    wanted, same = npurt.matmul(a, w), a

    a @= w

    assert a is same
    np.testing.assert_array_equal(a, wanted)


def test_a_vector_of_a_qtensor_is_a_row_of_products():
    w = QTensor.quantize(numbers(0, 6, K), "q8_0")
    a, b = numbers(1, 3, K), numbers(2, 2, K, 5)

    np.testing.assert_array_equal(a @ w[2], npurt.matmul(a, w[2:3].T)[:, 0])
    np.testing.assert_array_equal(w[2] @ b, npurt.matmul(w[2:3], b)[:, 0])
    np.testing.assert_array_equal(np.dot(a[0], w[2]), npurt.matmul(a, w[2:3].T)[0, 0])
    np.testing.assert_array_equal(np.einsum("ik,k->i", a, w[2]), a @ w[2])


def test_a_qtensor_on_the_left_multiplies_as_its_transpose_on_the_right():
    w = QTensor.quantize(numbers(0, 6, K), "q8_0")
    b = numbers(2, 2, K, 5)

    np.testing.assert_array_equal(w @ b, (b.swapaxes(1, 2) @ w.T).swapaxes(1, 2))
    np.testing.assert_array_equal(w @ b[0, :, 0], b[0, :, 0] @ w.T)


def test_values_that_int8_cannot_hold_are_named_where_they_are(weight):
    b = np.ones((K, 5), np.float32)
    b[7, 2] = np.nan

    with pytest.raises(NumericsError, match="b holds nan in row 7, column 2"):
        weight.T @ b


@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_qtensor_of_floats_multiplies_on_the_device_with_a_row_of_the_ledger(fmt, device):
    n, k = 32, 64
    w = QTensor.quantize(numbers(0, n, k), fmt)
    a, b = numbers(1, 3, k), numbers(2, k, 5)

    def count():
        rows = npurt.report(device).rows
        return sum(row.calls for row in rows if (row.tensor, row.actual) == (fmt, device))

    before = count()
    products = [(a, w.T), (w, b), (a[:, :n], w), (w[0], b), (w.T, b[:n])]
    for done, (x, y) in enumerate(products, 1):
        left, right = (e.dequantize() if isinstance(e, QTensor) else e for e in (x, y))
        terms = (left.astype(np.float64) ** 2) @ (right.astype(np.float64) ** 2)
        error = npurt.matmul(x, y, device=device) - left.astype(np.float64) @ right
        assert (error**2).sum() <= EIGHT_BITS * terms.sum()
        assert count() == before + done


@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16"])
def test_a_qtensor_of_floats_sums_along_any_axis(fmt):
    w = QTensor.quantize(numbers(0, N, K), fmt)
    a = numbers(1, 3, N)
    wanted = npurt.matmul(a, w)

    for y in (
        a @ w,
        (w.T @ a.T).T,
        np.einsum("in,nk->ik", a, w),
        np.einsum("kn,in->ik", w.T, a),
        np.tensordot(a, w, 1),
        np.tensordot(w, a, (0, 1)).T,
        np.inner(a, w.T),
    ):
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(wanted, a @ w.dequantize(), rtol=1e-5, atol=1e-4)


# --- Refusals -------------------------------------------------------------------------------------

X = np.ones((K, N), np.float32)
DECODING = {
    "numpy.asarray": [np.asarray, np.array, lambda w: np.array([w, w])],
    "numpy.from_dlpack": [np.from_dlpack],
    "numpy.add": [lambda w: w + 1, lambda w: X + w, lambda w: np.add(X, w, out=X.copy())],
    "numpy.multiply": [lambda w: 2 * w, lambda w: w * X],
    "numpy.negative": [operator.neg],
    "numpy.equal": [lambda w: np.equal(w, X), lambda w: operator.eq(X, w)],
    "numpy.less": [lambda w: w < 0],
    "numpy.add.reduce": [np.add.reduce],
    "numpy.exp": [np.exp],
    "numpy.sum": [np.sum],
    "numpy.einsum": [lambda w: np.einsum("kn,kn", w, w)],
    "numpy.tensordot over 2 pairs of axes": [lambda w: np.tensordot(X, w)],
    "numpy.tensordot over 0 pairs of axes": [lambda w: np.tensordot(X, w, 0)],
    "numpy.einsum ": [lambda w: np.einsum("ij,jk", X, X.T, out=w)],
    "numpy.linalg.svd": [np.linalg.svd],
    "numpy.linalg.norm": [np.linalg.norm],
    "numpy.vdot": [lambda w: np.vdot(X, w)],
    "numpy.kron": [lambda w: np.kron(X, w)],
    "numpy.concatenate": [lambda w: np.concatenate([w, w])],
    "numpy.save": [lambda w: np.save("/dev/null", w)],
    "numpy.zeros_like": [np.zeros_like],
}


@pytest.mark.parametrize(
    ("name", "function"), [(name, f) for name, functions in DECODING.items() for f in functions]
)
@pytest.mark.parametrize("kind", ["packed", "qtensor"])
def test_what_would_decode_a_weight_is_refused_with_the_way_to_do_it(kind, name, function):
    tensor = QTensor.quantize(numbers(0, N, K), "q8_0").T
    w = npurt.pack(tensor, device="cpu") if kind == "packed" else tensor

    with pytest.raises(UnsupportedOp) as caught:
        function(w)

    assert caught.value.what == f"{name.strip()} would dequantise all of {w!r}"
    assert "w.dequantize()" in caught.value.remedy
    np.testing.assert_equal(np.shape(w.dequantize()), (K, N))  # the remedy works


def test_the_method_of_an_array_is_refused_since_numpy_hides_the_weight_from_it(weight):
    with pytest.raises(UnsupportedOp, match="a @ w"):
        numbers(1, 3, K).dot(weight)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda a, w: a @ w.T, "cannot be a right operand"),
        (lambda a, w: w @ a.T, "cannot be a left operand"),
        (lambda a, w: w.T @ w, "are both quantised"),
        (lambda a, w: np.inner(a, w), "cannot be summed"),
        (lambda a, w: np.tensordot(w, a[:, :N], ([1], [1])), "cannot be summed"),
        (lambda a, w: np.tensordot(a, w, ([1], [2])), "cannot be summed"),
        (lambda a, w: np.tensordot(a, w, ([2], [0])), "of 2 axes has no axis 2"),
        (lambda a, w: np.tensordot(a[0], w, ([1], [0])), "of 1 axes has no axis 1"),
        (lambda a, w: np.tensordot(a, w, ([0, 1], [0])), "invalid axes of numpy.tensordot"),
        (lambda a, w: np.tensordot(a, w, "x"), "invalid axes of numpy.tensordot: 'x'"),
        (lambda a, w: np.tensordot(a, w, ([0.5], [0])), "invalid axes of numpy.tensordot"),
        (lambda a, w: np.tensordot(a, w, (1, 0, 0)), "invalid axes of numpy.tensordot"),
        (lambda a, w: np.transpose(w, 5), "5 is not a permutation of the axes"),
        (lambda a, w: np.transpose(w, (0, 0)), "is not a permutation of the axes"),
        (lambda a, w: np.transpose(w, (1, 2)), "is not a permutation of the axes"),
        (lambda a, w: np.transpose(w, "ab"), "'ab' is not a permutation of the axes"),
        (lambda a, w: np.linalg.multi_dot([w]), "one array"),
        (lambda a, w: np.einsum("in,kn->ik", a[:, :N], w), "cannot be summed"),
        (lambda a, w: np.einsum("ik,kn->ikn", a, w), "cannot be summed"),
        (lambda a, w: np.einsum("kk,kn->n", a[:, :3], w), "cannot be summed"),
        (lambda a, w: np.einsum("ik,kn,nm->im", a, w, a), "two operands"),
        (lambda a, w: np.einsum(a, [0, 1], w, [1, 2]), "string of subscripts"),
        (lambda a, w: np.einsum("ik,kn,", a, w), "does not name two operands"),
        (lambda a, w: np.einsum("ik,kn->inz", a, w), "the result of 'ik,kn->inz'"),
        (lambda a, w: np.einsum("ik,kn->ii", a, w), "the result of 'ik,kn->ii'"),
        (lambda a, w: np.einsum("ik,kn->i!", a, w), "the result of 'ik,kn->i!'"),
        (lambda a, w: np.einsum("...k,kn->n", a, w), "'...k,kn->n' cannot be computed"),
        (lambda a, w: np.einsum("iik,kn->in", a.reshape(1, 3, K), w), "cannot be computed"),
        (lambda a, w: np.einsum("i.k,kn->in", a[None], w), "does not fit operands"),
        (lambda a, w: np.einsum("bik,kn->bin", a, w), "does not fit operands"),
        (lambda a, w: np.einsum("ik,k->i", a, w), "does not fit operands"),
        (lambda a, w: np.einsum("ik,kn->in", a, w, dtype=float), "does not support dtype"),
        (lambda a, w: np.matmul(a, w, dtype=np.float32), "does not support dtype"),
        (lambda a, w: np.matmul(a, w, axes=[(0, 1)] * 3), "does not support axes"),
        (lambda a, w: np.matmul(a, w, out=w), "out is PackedWeight"),
        (lambda a, w: np.matmul(a, w, out=np.empty((3, N))), "out is float64"),
        (lambda a, w: np.dot(a, 2 * [w]), "would dequantise"),
        (lambda a, w: np.dot(3.0, w), "a is a single number"),
        (lambda a, w: w.T @ 3.0, "b is a single number"),
        (lambda a, w: a[:, :5] @ w, "do not multiply: a has K = 5, b has 64"),
        (lambda a, w: w.T @ a, "do not multiply: a has K = 64, b has 3"),
        (lambda a, w: a.astype(int) @ w, "a is int64"),
        (lambda a, w: a.astype(complex) @ w, "a is complex128"),
        (lambda a, w: "text" @ w, "a is str, which holds no numbers"),
        (lambda a, w: npurt.matmul(a.astype(object), w), "a is an array of Python objects"),
        (lambda a, w: None @ w, "a is NoneType, which holds no numbers"),
        (lambda a, w: a @ QTensor.quantize(np.ones((2, N, K)), "q8_0"), "each matrix of a stack"),
        (lambda a, w: QTensor.quantize(np.ones((2, N, K)), "q8_0") @ a.T, "each matrix of a stack"),
    ],
)
def test_a_product_that_does_not_exist_is_refused_by_what_is_wrong(weight, function, said):
    with pytest.raises(npurt.NpurtError, match=said) as caught:
        function(numbers(1, 3, K), weight)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["...i,ii->...", "...i,ii", "i...,ii->...", "ai,ii->a", "i,ii->i"])
@pytest.mark.parametrize("weight_first", [False, True])
def test_a_diagonal_of_a_weight_is_refused_with_the_way_to_its_values(text, weight_first):
    w = npurt.pack(numbers(0, K, K), "q8_0", device="cpu")
    a = numbers(1, K) if text.startswith("i,") else numbers(1, K, K)
    inputs, arrow, output = text.partition("->")
    if weight_first:
        text = ",".join(inputs.split(",")[::-1]) + arrow + output

    for operand in (w, w.T, w.tensor):
        with pytest.raises(UnsupportedOp, match="would dequantise all of") as caught:
            np.einsum(text, operand, a) if weight_first else np.einsum(text, a, operand)
        assert "w.dequantize()" in caught.value.remedy


def remedy(function):
    with pytest.raises(LayoutError) as caught:
        function()
    return caught.value.remedy


def test_the_remedy_of_a_turned_operand_is_not_what_was_written(weight):
    a, tensor = numbers(1, 3, K), QTensor.quantize(numbers(0, N, K), "q8_0")

    assert remedy(lambda: a @ weight.T) == "multiply a @ w, without the .T"
    assert remedy(lambda: weight @ a.T) == "multiply w.T @ b"
    assert remedy(lambda: a @ tensor) == "multiply a @ w.T"
    assert remedy(lambda: tensor.T @ a.T) == "multiply w @ b, without the .T"
    for wrong in (lambda: a[:, :N] @ weight.T, lambda: a[:, :N] @ weight, lambda: weight @ a[:N]):
        assert "dequantize()" in remedy(wrong)
        assert "@ w.T" not in remedy(wrong)


def test_the_remedy_of_what_cannot_be_packed_can_be_carried_out(weight):
    stack = QTensor.quantize(numbers(0, 2, N, K), "q8_0")

    assert remedy(lambda: npurt.pack(weight.T)) == "pass w itself, without the .T"
    assert remedy(lambda: npurt.pack(stack[0])) == "pass w.T, of shape (K, N)"
    assert remedy(lambda: npurt.pack(stack)) == "pack each matrix of the stack: w[i].T"
    assert "w[i : i + 1].T" in remedy(lambda: npurt.pack(stack[0][3]))
    for good in (weight, stack[0].T, stack[1].T, stack[0][3:4].T):
        npurt.pack(good)


@pytest.mark.parametrize("b", [np.ones((N, K)), np.ones(5)])
def test_a_remedy_can_be_carried_out(weight, b):
    with pytest.raises(LayoutError) as caught:
        npurt.matmul(np.ones((3, K)), b)
    assert ("a @ w.T" in caught.value.remedy) == (b.shape == (N, K))
    npurt.matmul(np.ones((3, K)), b.T if b.shape == (N, K) else np.ones(K))


def test_no_product_and_no_refusal_decodes_a_weight(weight, monkeypatch):
    """A product with a QTensor packs the weight, and does not decode it either."""
    a, tensor = numbers(1, 3, K), QTensor.quantize(weight.dequantize().T, "q8_0")
    wanted = [form(a, weight) for form in FORMS.values()]

    def decode(*arguments):
        raise AssertionError("decoded")

    monkeypatch.setattr("npurt.quant.tensor.dequantize", decode)
    for form, each in zip(FORMS.values(), wanted, strict=True):
        np.testing.assert_array_equal(form(a, weight), each)
    np.testing.assert_array_equal(a @ tensor.T, wanted[0])
    with pytest.raises(AssertionError, match="decoded"):
        weight.dequantize()
