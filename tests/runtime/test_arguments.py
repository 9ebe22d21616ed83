"""Tests of integer arguments: a value of another type or out of range is an error that names it."""

import numpy as np
import pytest

import npurt
from npurt.errors import SettingError
from npurt.runtime.open.arguments import integer, optional_integer


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_an_integer_is_returned_as_pythons(value):
    given = integer("n", value, 3, 3)

    assert given == 3
    assert type(given) is int


@pytest.mark.parametrize("value", [2, 6, -1, 3.0, 2.5, "3", b"3", None, True, [3], np.float32(3)])
def test_what_is_none_or_out_of_range_is_refused_by_name(value):
    with pytest.raises(SettingError, match="n is ") as caught:
        integer("n", value, 3, 5)
    assert caught.value.remedy == "n must be an integer of at least 3 and at most 5"


def test_none_may_stand_for_a_default():
    assert optional_integer("n", None, 1) is None
    assert optional_integer("n", 1, 1) == 1
    with pytest.raises(SettingError, match="n is 0"):
        optional_integer("n", 0, 1)


@pytest.mark.parametrize("threads", ["2", 1.0, -1, True])
def test_a_device_has_a_whole_number_of_threads(threads):
    with pytest.raises(SettingError, match=f"threads is {threads!r}"):
        npurt.open_device("cpu", threads=threads)


@pytest.mark.parametrize("name", [5, b"cpu", ["cpu"], True])
def test_a_device_name_is_text(name):
    with pytest.raises(npurt.DeviceNotFound, match="is not a device name"):
        npurt.open_device(name)
