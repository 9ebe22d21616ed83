"""Tests that ops behave like frozen dataclasses, without methods compiled for each class."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest

from npurt.graph import ops
from npurt.graph.data import Data
from npurt.graph.tensor import Tensor

X, Y, Z = (Tensor(name, ()) for name in "xyz")
ADD = ops.Add("sum", X, Y, Z)


def test_values_come_in_order_or_by_name_and_the_others_are_defaults():
    assert ops.Add(name="sum", out=Z, b=Y, a=X, scale=1.0) == ADD
    assert [field.name for field in fields(ADD)] == ["name", "a", "b", "out", "scale"]
    assert (ADD.name, ADD.a, ADD.b, ADD.out, ADD.scale) == ("sum", X, Y, Z, 1.0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("sum", X, Y), {}),
        (("sum", X, Y, Z, 1.0, 2.0), {}),
        (("sum", X, Y, Z), {"name": "other"}),
        (("sum", X, Y, Z), {"factor": 1.0}),
        (("sum", X, Y, Z), {"reads": ()}),
    ],
    ids=["too few", "too many", "twice", "unknown", "computed"],
)
def test_values_that_are_no_fields_are_refused(values, named):
    with pytest.raises(TypeError, match="Add takes"):
        ops.Add(*values, **named)


def test_ops_are_equal_by_kind_and_values():
    same = replace(ADD, scale=1.0)

    assert same == ADD
    assert hash(same) == hash(ADD)
    assert replace(ADD, scale=2.0) != ADD
    assert ops.Multiply("sum", X, Y, Z) != ops.Add("sum", X, Y, Z)
    assert len({ADD, same, replace(ADD, name="other")}) == 2


def test_what_is_computed_of_an_op_is_not_kept_for_its_replacement():
    assert ADD.reads == (X, Y)

    assert replace(ADD, a=Z).reads == (Z, Y)


def test_an_op_does_not_change():
    with pytest.raises(FrozenInstanceError, match="scale"):
        ADD.scale = 2.0
    with pytest.raises(FrozenInstanceError, match="scale"):
        del ADD.scale
    assert ADD.scale == 1.0


def test_an_op_shows_its_values():
    assert (
        repr(ops.Scale("half", X, Y, 0.5)) == f"Scale(name='half', x={X!r}, out={Y!r}, factor=0.5)"
    )


def test_classes_compile_no_methods_of_their_own():
    generated = {"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"}
    kinds = [k for k in vars(ops).values() if isinstance(k, type) and issubclass(k, ops.Op)]

    assert len(kinds) > 20
    assert all(not generated & vars(kind).keys() for kind in kinds)
    assert generated <= vars(Data).keys()
