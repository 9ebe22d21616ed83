"""Test that errors have remedies, are caught by families, and can be sent between processes."""

import builtins
import copy
import inspect
import pickle
import re

import pytest

from npurt import errors
from npurt.errors import DriverError, NpurtError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, NpurtError)]


def make(cls):
    """Return an error of *cls* with all its arguments."""
    extra = {"call": "ioctl", "code": -110} if issubclass(cls, DriverError) else {}
    return cls("the cable is out", remedy="plug it in", **extra)


def drawn_tree():
    """Return {name: (parent, builtin base or None)} as the module's docstring draws it."""
    tree, path = {}, ["NpurtError"]
    for line in errors.__doc__.splitlines():
        if row := re.match(r" {4}((?:\|   |    )*)\+-- (\w+)(?: +\((\w+)\))?  ", line):
            depth = len(row[1]) // 4
            path = [*path[: depth + 1], row[2]]
            tree[row[2]] = (path[depth], row[3])
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    classes = {}
    for cls in CLASSES:
        ours = [base.__name__ for base in cls.__bases__ if issubclass(base, NpurtError)]
        other = [base.__name__ for base in cls.__bases__ if hasattr(builtins, base.__name__)]
        classes[cls.__name__] = (*ours, *(other or [None]))
    assert classes.pop("NpurtError") == ("Exception",)

    assert drawn_tree() == classes


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_says_what_happened_and_what_to_do(cls):
    error = make(cls)

    assert (error.what, error.remedy) == ("the cable is out", "plug it in")
    assert str(error).splitlines() == ["the cable is out", "  remedy: plug it in"]


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_without_a_remedy_cannot_be_made(cls):
    with pytest.raises(TypeError, match="remedy"):
        cls("the cable is out")


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("clone", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_an_error_survives_the_way_between_processes(cls, clone):
    error = make(cls)

    back = clone(error)

    assert type(back) is cls
    assert vars(back) == vars(error)
    assert (str(back), back.args) == (str(error), error.args)


class Silent:
    def __repr__(self):
        raise RuntimeError("no")


def test_any_value_can_be_shown():
    assert errors.brief("x" * 100) == "'" + "x" * 59
    assert errors.brief([1, 2], 3) == "[1,"
    assert errors.brief(Silent()) == "<Silent>"
    assert errors.brief(10**5000) == "<int of 16610 bits>"
    assert errors.brief([10**5000]) == "<list>"
