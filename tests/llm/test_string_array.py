"""Tests of arrays of strings that are decoded on access."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.file.header import read_header
from npurt.llm.file.string_array import EVERY, StringArray
from tests.llm import gguf_files as raw

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def read(strings):
    file = raw.File().with_key("x", raw.ARRAY, (raw.STRING, strings))
    return read_header(file.encode()).metadata["x"]


@given(st.lists(texts, max_size=30), st.integers(-40, 40), st.integers(-40, 40))
def test_it_is_the_list_of_its_strings(strings, first, last):
    for array in (read(strings), StringArray.of(strings)):
        assert list(array) == strings
        assert array == strings
        assert strings == array
        assert len(array) == len(strings)
        assert array[first:last] == strings[first:last]
        assert array.nbytes == sum(len(text.encode()) for text in strings)
        assert array.longest == max((len(text.encode()) for text in strings), default=0)
        if -len(strings) <= first < len(strings):
            assert array[first] == strings[first]
        else:
            with pytest.raises(IndexError):
                array[first]


@given(st.lists(texts, max_size=5), st.lists(texts, max_size=5))
def test_two_are_equal_when_their_strings_are(a, b):
    assert (read(a) == StringArray.of(b)) == (a == b)
    assert read(["a"]) != "a"


def test_bytes_that_are_no_utf8_are_kept():
    odd = b"\xff\xfe\xe2\x82"
    array = read([odd, "ok"])

    assert [text.encode("utf-8", "surrogateescape") for text in array] == [odd, b"ok"]
    assert StringArray.of(array) == array


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_many_are_read_in_order(count):
    assert list(StringArray.of(map(str, range(count)))) == [str(i) for i in range(count)]


def test_reading_strings_leaves_no_blocks_behind():
    """A single block that is not freed prevents Python from returning a megabyte to the system."""
    texts = StringArray.of(map(str, range(5000 * EVERY)))

    def left():
        before = sys.getallocatedblocks()
        list(texts)
        return sys.getallocatedblocks() - before

    assert min(left() for _ in range(5)) < 5
