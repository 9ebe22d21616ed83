"""Tests of types in metadata: a value of a wrong type is refused; the error names its key."""

from array import array

import pytest

from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import FLOATS, INTEGERS, numbers, optional, require, strings

KEYS = {
    "int": 3,
    "float": 0.5,
    "bool": True,
    "str": "text",
    "ints": memoryview(array("i", [1, 2])),
    "floats": memoryview(array("f", [0.5])),
    "flags": memoryview(b"\1").cast("?"),
    "strs": ["a", ""],
    "none": [],
}


def test_values_of_the_right_type_are_returned():
    assert require(KEYS, "int", int) == 3
    assert require(KEYS, "bool", bool) is True
    assert require(KEYS, "str", str) == "text"
    assert require(KEYS, "float", float) == 0.5
    assert strings(KEYS, "strs") == ["a", ""]
    assert strings(KEYS, "none") == []
    assert numbers(KEYS, "ints", INTEGERS).tolist() == [1, 2]
    assert numbers(KEYS, "floats", INTEGERS + FLOATS).tolist() == [0.5]


def test_an_integer_passes_for_a_float():
    value = require(KEYS, "int", float)
    assert (value, type(value)) == (3.0, float)


def test_a_default_stands_for_what_is_missing_and_not_for_what_is_wrong():
    assert optional(KEYS, "other", int, 7) == 7
    assert optional(KEYS, "int", int, 7) == 3
    with pytest.raises(ModelFormatError, match="'str'"):
        optional(KEYS, "str", int, 7)


WRONG = [
    (require, "other", int),
    (require, "bool", int),
    (require, "float", int),
    (require, "int", bool),
    (require, "strs", str),
    (require, "ints", int),
    (strings, "other"),
    (strings, "str"),
    (strings, "ints"),
    (numbers, "other", INTEGERS),
    (numbers, "floats", INTEGERS),
    (numbers, "flags", INTEGERS + FLOATS),
    (numbers, "strs", INTEGERS + FLOATS),
    (numbers, "int", INTEGERS),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0].__name__} {case[1]}")
def test_a_value_that_is_missing_or_of_another_type_is_refused(case):
    read, key, *kind = case
    with pytest.raises(ModelFormatError, match=f"'{key}'") as caught:
        read(KEYS, key, *kind)

    assert caught.value.remedy
