"""Python operators and numpy functions on quantised weights.

All operators and functions that compute a product call `npurt.matmul`.  Other functions would have
to dequantise the whole weight; they raise an error that says how to do this explicitly.
"""

import abc
import functools
import operator
import re
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from npurt.errors import LayoutError, UnsupportedOp

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


class QuantisedArray(NDArrayOperatorsMixin, abc.ABC):
    """The base class of weights that behave like numpy arrays in products.

    Two weights are equal only if they are the same object.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""

    @property
    @abc.abstractmethod
    def ndim(self) -> int:
        """The number of axes."""

    @property
    @abc.abstractmethod
    def T(self) -> Any:  # noqa: N802  numpy's name
        """The transposed view."""

    @property
    @abc.abstractmethod
    def sum_axis(self) -> int:
        """The index of the axis K, which is divided into blocks and summed over in products."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of elements."""

    def with_sum_axis(self, axis: int) -> Self:
        """Return a weight with the same values and K along *axis*.

        If that would round the values, return the weight itself.
        """
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __matmul__(self, other: npt.ArrayLike) -> F32:
        y: F32 = _product(self, other)
        return y

    def __rmatmul__(self, other: npt.ArrayLike) -> F32:
        y: F32 = _product(other, self)
        return y

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        name = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        function = UFUNCS.get(name)
        if function is None:
            raise refused(name, self)
        (out,) = options.pop("out", (None,))
        if options.get("axes") in USUAL_AXES:
            del options["axes"]
        _require_none(name, options)
        return function(*inputs, out=out)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        function = FUNCTIONS.get(func)
        if function is None or isinstance(kwargs.get("out"), QuantisedArray):
            raise refused(f"{func.__module__}.{func.__name__}", self)
        return function(*args, **kwargs)


def refused(name: str, weight: QuantisedArray) -> UnsupportedOp:
    """Return the error of a function that needs the values of *weight*."""
    return UnsupportedOp(
        f"{name} would dequantise all of {weight!r}",
        remedy="multiply with a @ w, or pass the float32 values, w.dequantize()",
    )


def _require_none(name: str, options: dict[str, Any]) -> None:
    """Raise UnsupportedOp if a numpy function got options that products do not support."""
    if options:
        raise UnsupportedOp(
            f"{name} of a quantised weight does not support {', '.join(options)}",
            remedy="omit this option; results are float32, and may be written to out=",
        )


def _sum(a: Any, axis_a: int, b: Any, axis_b: int, name: str) -> Any:
    """Return the product of *a* and *b*, summed over one axis of each; one of them is a weight.

    The result has the other axes of *a*, then the other axes of *b*.
    """
    first = isinstance(a, QuantisedArray)
    w, axis, x, other = (a, axis_a, b, axis_b) if first else (b, axis_b, a, axis_a)
    if isinstance(x, QuantisedArray):
        raise refused(name, x)
    w = w.with_sum_axis(axis % w.ndim)
    if axis not in (w.sum_axis, w.sum_axis - w.ndim):
        raise _across(f"{name} along axis {axis}", w)
    y = _product(_last(x, other), w.T if w.sum_axis else w)
    return np.moveaxis(y, -1, 0) if first and w.ndim > 1 else y


def _across(what: str, w: QuantisedArray) -> UnsupportedOp:
    """Return the error of a sum over another axis than K."""
    return UnsupportedOp(
        f"{what} of {w!r} cannot be summed: its blocks lie along axis {w.sum_axis}",
        remedy="use w.T to multiply by the transpose, else pass the values, w.dequantize()",
    )


def _ndim(x: Any) -> int:
    """Return the number of axes.

    Raises:
        LayoutError: *x* cannot be converted to an array.
    """
    try:
        return np.ndim(x)
    except (TypeError, ValueError) as error:
        raise LayoutError(f"an operand is not an array: {error}", remedy="pass an array") from error


def _last(x: Any, axis: int) -> Any:
    """Return *x* with *axis* moved to the end."""
    ndim = _ndim(x)
    if ndim and not -ndim <= axis < ndim:
        raise LayoutError(
            f"an array of {ndim} axes has no axis {axis}", remedy=f"use -{ndim} to {ndim - 1}"
        )
    return x if ndim < 2 or axis in (-1, ndim - 1) else np.moveaxis(np.asarray(x), axis, -1)


def _dot(a: Any, b: Any, out: Array | None = None) -> Any:
    """Implement `numpy.dot`, which differs from `numpy.matmul` if the right operand is a stack."""
    if not isinstance(a, QuantisedArray) or _ndim(b) < 3:
        return _product(a, b, out=out)
    y = _product(a, b, out=None if out is None else np.moveaxis(out, 0, -2))
    return np.moveaxis(y, -2, 0) if out is None else out


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Implement `numpy.tensordot` over one pair of axes."""
    try:
        of_a, of_b = (range(-axes, 0), range(axes)) if np.ndim(axes) == 0 else axes
        first, second = ([operator.index(i) for i in np.atleast_1d(each)] for each in (of_a, of_b))
        pairs = list(zip(first, second, strict=True))
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"invalid axes of numpy.tensordot: {axes!r}",
            remedy="pass 1, or an axis of each operand, for example (1, 0)",
        ) from error
    if len(pairs) != 1:
        w = a if isinstance(a, QuantisedArray) else b
        raise refused(f"numpy.tensordot over {len(pairs)} pairs of axes", w)
    return _sum(a, pairs[0][0], b, pairs[0][1], "numpy.tensordot")


def _multi_dot(arrays: Any, *, out: Array | None = None) -> Any:
    """Implement `numpy.linalg.multi_dot`, from left to right."""
    *first, last = arrays
    if not first:
        raise LayoutError("multi_dot got one array", remedy="pass two or more")
    return _product(functools.reduce(_product, first), last, out=out)


def _einsum(subscripts: Any, *operands: Any, out: Array | None = None, **options: Any) -> Any:
    """Implement `numpy.einsum` of two operands, one of them a weight that is summed over K."""
    options.pop("optimize", None)  # two operands have only one order
    _require_none("numpy.einsum", options)
    if not isinstance(subscripts, str) or len(operands) != 2:
        raise UnsupportedOp(
            "numpy.einsum of a quantised weight needs a string of subscripts and two operands",
            remedy="multiply two at a time: np.einsum('ij,jk->ik', a, w)",
        )
    first = isinstance(operands[0], QuantisedArray)
    w, x = operands if first else operands[::-1]
    if isinstance(x, QuantisedArray):
        raise refused("numpy.einsum", x)
    terms, output = _subscripts(subscripts)
    if len(terms) != 2:
        raise LayoutError(f"{subscripts!r} does not name two operands", remedy="write 'ij,jk->ik'")
    of_w, of_x = terms if first else terms[::-1]
    given = len(of_x.replace("...", ""))
    if (
        len(of_w) != w.ndim
        or "." in of_w
        or not all(map(TERM.fullmatch, terms))
        or (_ndim(x) < given if "..." in of_x else _ndim(x) != given)
    ):
        raise LayoutError(
            f"{subscripts!r} does not fit operands of shapes {np.shape(operands[0])} and "
            f"{np.shape(operands[1])}",
            remedy="write one letter for each axis",
        )
    names = output.replace("...", "")
    if not TERM.fullmatch(output) or len(set(names)) < len(names) or set(names) - set(of_w + of_x):
        raise LayoutError(
            f"the result of {subscripts!r} has a letter twice, or one that no operand has",
            remedy="after ->, write letters of the operands, each at most once",
        )
    if len(set(of_w)) < len(of_w):
        raise refused(f"numpy.einsum({subscripts!r})", w)
    summed = [axis for axis, c in enumerate(of_w) if c in of_x and c not in output]
    if len(summed) == 1:
        w = w.with_sum_axis(summed[0])
    k = of_w[w.sum_axis]
    kept = of_w.replace(k, "")  # the letter of N; none if w is a vector
    if of_x.count(k) != 1 or k in output or (kept and kept in of_x):
        raise _across(f"numpy.einsum({subscripts!r})", w)
    left, _, right = of_x.partition(k)
    axis = len(left) if "..." in right else -len(right) - 1
    y = _product(_last(x, axis), w.T if w.sum_axis else w)
    try:
        return np.einsum(f"{left}{right}{kept}->{output}", y, out=out)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"{subscripts!r} cannot be computed: {error}",
            remedy="correct the subscripts, the shape of the array, or out=",
        ) from error


def _subscripts(text: str) -> tuple[list[str], str]:
    """Return the terms of the operands, and of the result; a missing result is deduced."""
    inputs, arrow, output = text.replace(" ", "").partition("->")
    if not arrow:
        once = sorted(c for c in set(inputs) - set(".,") if inputs.count(c) == 1)
        output = ("..." if "..." in inputs else "") + "".join(once)
    return inputs.split(","), output


def _matvec(w: Any, x: Any, *, out: Array | None = None) -> Any:
    """Implement `numpy.matvec` of a weight ``[N, K]``: one product with each row of *x*."""
    if not isinstance(w, QuantisedArray):
        raise refused("numpy.matvec", x)
    return _product(x, w.T, out=out)


def _vecmat(x: Any, w: Any, *, out: Array | None = None) -> Any:
    """Implement `numpy.vecmat` of a weight ``[K, N]``: one product with each row of *x*."""
    if not isinstance(w, QuantisedArray):
        raise refused("numpy.vecmat", x)
    return _product(x, w, out=out)


def _transpose(a: QuantisedArray, axes: Any = None) -> Any:
    """Implement `numpy.transpose`: return the weight or its transposed view."""
    usual = list(range(a.ndim))
    if axes is None:
        return a.T
    try:
        order = [usual[i] for i in (axes if np.ndim(axes) else [axes])]
    except (TypeError, ValueError, IndexError):
        order = []
    if sorted(order) != usual:
        raise LayoutError(
            f"{axes!r} is not a permutation of the axes of {a!r}", remedy=f"permute {usual}"
        )
    if order == usual:
        return a
    if order != usual[::-1]:
        raise refused(f"numpy.transpose with axes {axes}", a)
    return a.T


def _result_type(*operands: Any) -> np.dtype[Any]:
    """Implement `numpy.result_type`; a weight counts as float32."""
    return np.result_type(
        *(np.dtype(np.float32) if isinstance(x, QuantisedArray) else x for x in operands)
    )


def _product(a: Any, b: Any, *, out: Array | None = None) -> Any:
    """Return ``npurt.matmul(a, b)``, which is what the operator ``@`` of a weight means.

    This is npurt's only import of a higher layer (docs/decisions/023, tests/test_layers.py).
    """
    from npurt.runtime.api.matmul import matmul

    return matmul(a, b, out=out)


TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")  # subscripts of an operand in einsum
USUAL_AXES = ([(-2, -1)] * 3, [(-1,), (-2, -1), (-1,)])  # values that ``a @= w`` passes as axes=
UFUNCS: dict[str, Callable[..., Any]] = {
    "numpy.matmul": _product,
    "numpy.matvec": _matvec,
    "numpy.vecmat": _vecmat,
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.dot: _dot,
    np.inner: lambda a, b: _sum(a, -1, b, -1, "numpy.inner"),
    np.tensordot: _tensordot,
    np.einsum: _einsum,
    np.linalg.multi_dot: _multi_dot,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
    np.transpose: _transpose,
    np.result_type: _result_type,
    np.iscomplexobj: lambda x: False,
    np.isrealobj: lambda x: True,
}
if hasattr(np.linalg, "matmul"):  # numpy 2
    FUNCTIONS |= {
        np.linalg.matmul: _product,
        np.linalg.tensordot: lambda a, b, /, *, axes=2: _tensordot(a, b, axes),
        np.matrix_transpose: _transpose,
        np.linalg.matrix_transpose: _transpose,
    }
