"""Quantised weights in expressions of Python and numpy: numpy is the oracle."""

import copy
import operator
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError, NumericsError, UnsupportedOp
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.testing import EIGHT_BITS
from tests.limits import HANG_SECONDS

DEVICES = ["cpu", "numpy", "hexagon:sim", "rknpu:sim"]
K, N = 64, 48


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module", params=DEVICES)
def packed(request):
    """A weight ``[K, N]`` on a device."""
    return npurt.pack(numbers(0, K, N), "q8_0", device=request.param)


@pytest.fixture(scope="module")
def weight():
    """The same on the CPU."""
    return npurt.pack(numbers(0, K, N), "q8_0", device="cpu")


def assert_is(form, a, w):
    """*form* of a and w is float32, and numpy's of their values but for rounding to 8 bits.

    The error is compared with the sum of squared terms: sums of the squares of both operands, by
    the same form.
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


# Of a [..., K] and w [K, N]: all mean a @ w, or its transpose.
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
    """Subscripts of a product with a weight, the shape of a, and whether the weight is its .T."""
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


# --- What is refused ------------------------------------------------------------------------------

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
    "numpy.transpose with axes (0, 1)": [lambda w: np.transpose(w, (0, 1))],
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

    assert caught.value.what == f"{name.strip()} would decode all of {w!r}"
    assert "w.dequantize()" in caught.value.remedy
    np.testing.assert_equal(np.shape(w.dequantize()), (K, N))  # the way to do it


def test_the_method_of_an_array_is_refused_since_numpy_hides_the_weight_from_it(weight):
    with pytest.raises(UnsupportedOp, match="a @ w"):
        numbers(1, 3, K).dot(weight)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda a, w: a @ w.T, "is no right operand"),
        (lambda a, w: w @ a.T, "is no left operand"),
        (lambda a, w: w.T @ w, "are both quantised"),
        (lambda a, w: np.inner(a, w), "cannot be summed"),
        (lambda a, w: np.tensordot(w, a[:, :N], ([1], [1])), "cannot be summed"),
        (lambda a, w: np.tensordot(a, w, ([1], [2])), "cannot be summed"),
        (lambda a, w: np.tensordot(a, w, ([2], [0])), "2 axes have no axis 2"),
        (lambda a, w: np.tensordot(a[0], w, ([1], [0])), "1 axes have no axis 1"),
        (lambda a, w: np.linalg.multi_dot([w]), "one array"),
        (lambda a, w: np.einsum("in,kn->ik", a[:, :N], w), "cannot be summed"),
        (lambda a, w: np.einsum("ik,kn->ikn", a, w), "cannot be summed"),
        (lambda a, w: np.einsum("kk,kn->n", a[:, :3], w), "cannot be summed"),
        (lambda a, w: np.einsum("ik,kn,nm->im", a, w, a), "two operands"),
        (lambda a, w: np.einsum(a, [0, 1], w, [1, 2]), "text of subscripts"),
        (lambda a, w: np.einsum("ik,kn,", a, w), "names not two operands"),
        (lambda a, w: np.einsum("bik,kn->bin", a, w), "does not fit operands"),
        (lambda a, w: np.einsum("ik,k->i", a, w), "does not fit operands"),
        (lambda a, w: np.einsum("ik,kn->in", a, w, dtype=float), "does not take dtype"),
        (lambda a, w: np.matmul(a, w, dtype=np.float32), "does not take dtype"),
        (lambda a, w: np.matmul(a, w, axes=[(0, 1)] * 3), "does not take axes"),
        (lambda a, w: np.matmul(a, w, out=w), "out is PackedWeight"),
        (lambda a, w: np.matmul(a, w, out=np.empty((3, N))), "out is float64"),
        (lambda a, w: np.dot(a, 2 * [w]), "would decode"),
        (lambda a, w: np.dot(3.0, w), "a is a single number"),
        (lambda a, w: w.T @ 3.0, "b is a single number"),
        (lambda a, w: a[:, :5] @ w, "do not multiply: a has K = 5, b has 64"),
        (lambda a, w: w.T @ a, "do not multiply: a has K = 64, b has 3"),
        (lambda a, w: a.astype(int) @ w, "a is int64"),
        (lambda a, w: a.astype(complex) @ w, "a is complex128"),
        (lambda a, w: "text" @ w, "a is str, which holds no numbers"),
        (lambda a, w: None @ w, "a is NoneType, which holds no numbers"),
        (lambda a, w: a @ QTensor.quantize(np.ones((2, N, K)), "q8_0"), "each matrix of a stack"),
        (lambda a, w: QTensor.quantize(np.ones((2, N, K)), "q8_0") @ a.T, "each matrix of a stack"),
    ],
)
def test_a_product_that_does_not_exist_is_refused_by_what_is_wrong(weight, function, said):
    with pytest.raises(npurt.NpurtError, match=said) as caught:
        function(numbers(1, 3, K), weight)
    assert caught.value.remedy


@pytest.mark.parametrize("b", [np.ones((N, K)), np.ones(5)])
def test_a_remedy_can_be_carried_out(weight, b):
    with pytest.raises(LayoutError) as caught:
        npurt.matmul(np.ones((3, K)), b)
    assert ("a @ w.T" in caught.value.remedy) == (b.shape == (N, K))
    npurt.matmul(np.ones((3, K)), b.T if b.shape == (N, K) else np.ones(K))


def test_no_product_and_no_refusal_decodes_a_weight(weight, monkeypatch):
    """Not that of a QTensor either, which is packed on the way."""
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


# --- What a packed weight is ----------------------------------------------------------------------


def test_a_packed_weight_has_the_attributes_of_an_array(packed):
    w = packed

    assert (w.shape, w.ndim, w.size, len(w), w.dtype) == ((K, N), 2, K * N, K, "q8_0")
    assert (w.T.shape, w.T.size, len(w.T), w.T.dtype) == ((N, K), K * N, N, "q8_0")
    assert (np.shape(w), np.ndim(w), np.shape(w.T)) == ((K, N), 2, (N, K))
    assert w.T.T is w
    assert (w.T.nbytes, w.T.device) == (w.nbytes, w.device)
    np.testing.assert_array_equal(w.T.dequantize(), w.dequantize().T)
    assert repr(w.T).endswith(f"MB on {w.device}, transposed)")
    assert w != w.T
    assert len({w, w.T.T}) == 1


@pytest.mark.parametrize("rows", [slice(3, 20), slice(None, None, -5), [4, 0, 47, -1], slice(1)])
def test_rows_of_a_packed_weight_are_chosen_along_n(packed, rows):
    some, turned_ = packed[:, rows], packed.T[rows]

    assert some.tensor.dtype == packed.dtype
    np.testing.assert_array_equal(some.tensor.blocks, packed.tensor.blocks[rows])
    np.testing.assert_array_equal(some.dequantize(), packed.dequantize()[:, rows])
    np.testing.assert_array_equal(turned_.dequantize(), packed.dequantize().T[rows])
    np.testing.assert_array_equal(packed.T[rows, :].dequantize(), turned_.dequantize())
    assert_is(operator.matmul, numbers(1, 3, K), some)
    assert (some.device, turned_.device) == (packed.device, packed.device)


@pytest.mark.parametrize(
    "index", [0, slice(3), (0, 0), (slice(None), 3), (slice(1, 9), slice(3)), None, ..., (1, 2, 3)]
)
def test_what_would_cut_k_is_refused(weight, index):
    with pytest.raises(LayoutError) as caught:
        weight[index]
    assert caught.value.remedy


@given(st.sampled_from([slice(1, 4), [2, 0], slice(None), 3, -1]))
def test_a_transposed_qtensor_chooses_columns_as_numpy_does(rows):
    w = QTensor.quantize(numbers(0, 6, K), "q8_0")

    np.testing.assert_array_equal(w.T[:, rows].dequantize(), w.T.dequantize()[:, rows])
    np.testing.assert_array_equal(w[rows, :].dequantize(), w.dequantize()[rows, :])


@pytest.mark.parametrize("other", DEVICES)
def test_packing_for_another_device_keeps_codes_and_type(packed, other):
    moved = npurt.pack(packed, device=other)

    assert (moved.device, moved.dtype) == (other, packed.dtype)
    assert moved.tensor is packed.tensor
    assert npurt.pack(packed) is packed
    assert_is(operator.matmul, numbers(1, 3, K), moved)
    back = npurt.pack(moved, device=packed.device)
    np.testing.assert_array_equal(back.tensor.blocks, packed.tensor.blocks)


def test_packing_a_packed_weight_in_another_format_quantises_its_values(weight):
    again = npurt.pack(weight, "q4_0")

    assert (again.dtype, again.device) == ("q4_0", "cpu")
    wanted = QTensor.quantize(weight.tensor.dequantize(), "q4_0")
    np.testing.assert_array_equal(again.tensor.blocks, wanted.blocks)
    with pytest.raises(LayoutError, match="not a right operand"):
        npurt.pack(weight.T)


def test_a_copy_of_a_packed_weight_is_itself(packed):
    assert copy.copy(packed) is packed
    assert copy.deepcopy({"w": packed})["w"] is packed


@pytest.mark.parametrize("transposed", [False, True])
def test_a_pickle_holds_the_codes_and_packs_them_for_the_same_device(packed, transposed):
    w = packed.T if transposed else packed
    text = pickle.dumps(w)

    loaded = pickle.loads(text)

    assert len(text) < packed.tensor.nbytes + 1000
    assert (loaded.shape, loaded.dtype, loaded.device) == (w.shape, w.dtype, w.device)
    np.testing.assert_array_equal(loaded.tensor.blocks, w.tensor.blocks)


def test_another_process_multiplies_by_a_pickled_weight(weight, tmp_path):
    path = tmp_path / "weight"
    a = numbers(1, 3, K)
    path.write_bytes(pickle.dumps((a, weight)))
    code = "import pickle, sys; a, w = pickle.load(sys.stdin.buffer); print((a @ w).tolist())"

    with path.open("rb") as file:
        run = subprocess.run(
            [sys.executable, "-c", code],
            stdin=file,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == str((a @ weight).tolist())


@pytest.mark.parametrize("fmt", BY_NAME)
def test_a_pickle_of_a_qtensor_of_every_format_has_the_same_bytes(fmt):
    form = BY_NAME[fmt]
    raw = np.random.default_rng(0).bytes(3 * form.row_bytes(512))
    w = QTensor.from_bytes(raw, fmt, (3, 512))  # read-only, as a mapped file is

    again = pickle.loads(pickle.dumps(w))

    assert (again.blocks.tobytes(), again.format) == (raw, form)


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))]
)
@pytest.mark.parametrize("shape", [(K,), (N, K), (2, N, K)])
def test_copies_and_pickles_of_a_qtensor_are_equal_tensors(remake, shape):
    w = QTensor.quantize(numbers(0, *shape), "q4_0")
    for each in (w, w.T) if w.ndim < 3 else (w,):
        again = remake(each)

        assert again is not each
        assert (again.shape, again.format, again.transposed) == (
            each.shape,
            each.format,
            each.transposed,
        )
        np.testing.assert_array_equal(again.blocks, each.blocks)
        assert np.shares_memory(again.blocks, each.blocks) == (remake is copy.copy)
