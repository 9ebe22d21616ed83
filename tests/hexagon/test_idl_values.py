"""Test arguments of calls: accepted values, values used without a copy, and refusals."""

from array import array
from pathlib import Path

import numpy as np
import pytest

from npurt.errors import LayoutError, NpurtError
from npurt.hexagon import idl

PRIM = {"a": 1, "b": 2, "c": 3}


@pytest.fixture(scope="module")
def t():
    return idl.load(Path(__file__).parent / "idl/wire.idl")


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_a_method_that_there_is_not_is_named(t):
    with pytest.raises(NpurtError, match="interface t has no method 'prim'"):
        t.method("prim")


@pytest.mark.parametrize(
    ("method", "args", "what"),
    [
        ("big", (1, 2, 3), "big takes 4 arguments, and 3 were given"),
        ("none", (1,), "none takes 0 arguments, and 1 were given"),
        ("big", (1, 2, 3, -1), "big: d: "),
        ("big", (1, 2, 2**32, 1), "big: c: "),
        ("big", (1, 2.5, 3, 4), "big: b: "),
        ("big", (None, 2, 3, 4), "big: a: "),
        ("prims", (128, 0, 0, 0.0, 0.0, True), "prims: a: "),
        ("prims", (1, 0, 0, 1e39, 0.0, True), "prims: f: "),
        ("prims", (1, 0, 0, "1", 0.0, True), "prims: f: "),
        ("enums", (3,), "enums: a: 3 is not one of RED, GREEN, BLUE"),
        ("enums", ("PINK",), "enums: a: 'PINK' is not one of RED"),
        ("enums", (None,), "enums: a: None is not one of RED"),
        ("structs", (5, PRIM, {"head": [1, 2, 3], "tail": 1}), "structs: a: 5 is not a mapping"),
        ("structs", (PRIM | {"d": 1}, PRIM, {}), "structs: a: {"),
        ("structs", (PRIM, {"a": 1}, {}), "structs: c: {'a': 1} is not a mapping with a, b, c"),
        ("structs", (PRIM, PRIM, {"head": [1, 2], "tail": 1}), "structs: d.head: [1, 2] is not a "),
        ("structs", (PRIM, PRIM, {"head": 5, "tail": 1}), "structs: d.head: 5 is not a sequence"),
        ("structs", (PRIM | {"a": 999}, PRIM, {"head": b"abc", "tail": 1}), "structs: a: "),
        ("seqs", ([1, 70000], 1, ([1.0], 1), 0), "seqs: a: "),
        ("seqs", (5, 1, ([1.0], 1), 0), "seqs: a: 5 is not a sequence or a buffer"),
        ("seqs", ([1], -1, ([1.0], 1), 0), "seqs: b: -1 is not a number of elements"),
        ("seqs", ([1], True, ([1.0], 1), 0), "seqs: b: True is not a number of elements"),
        ("seqs", ([1], 2**31, ([1.0], 1), 0), "seqs: b: 2147483648 is not a number of elements"),
        ("seqs", ([1], b"read-only", ([1.0], 1), 0), "seqs: b: b'read-only' is not writable"),
        ("seqs", ([1], 1, [1.0], 0), "seqs: c goes in and comes out"),
        ("seqs", ([1], 1, ([1.0, 2.0], 1), 0), "seqs: c: 2 elements go in, and there is room for"),
        ("seqs", (b"abc", 1, ([1.0], 1), 0), "seqs: a: b'abc' is not contiguous and whole"),
        ("strs", (5, 8, ("", 1)), "strs: a: 5 is not text without a NUL"),
        ("strs", ("a\0b", 8, ("", 1)), "strs: a: 'a\\x00b' is not text without a NUL"),
        ("strs", ("a", "b", ("", 1)), "strs: b: 'b' is not a number of elements"),
        ("strs", ("a", 8, ("abc", 3)), "strs: c: 4 elements go in, and there is room for 3"),
        (
            "cplx",
            ({"n": 1, "v": [2], "z": 3}, 5),
            "cplx: b: 5 is not a mapping with the room for v",
        ),
        ("cplx", ({"n": 1, "v": [-2], "z": 3}, {"v": 5}), "cplx: a.v: "),
        ("cplx", ({"n": -1, "v": [2], "z": 3}, {"v": 5}), "cplx: a: "),
        ("seqseq", (b"abc", [1]), "seqseq: a: b'abc' is not a list with an entry for each element"),
        ("seqseq", ([[1], [300]], [1, 1]), "seqseq: a[1]: "),
        ("seqseq", ([b"a"], 5), "seqseq: b: 5 is not a list"),
        ("seqstr", ("one",), "seqstr: a: 'one' is not a list"),
        ("seqstr", (["one", None],), "seqstr: a[1]: None is not text"),
        ("dma", (5,), "dma: a: 5 is not (fd, offset, length)"),
        ("dma", ((1, -1, 5),), "dma: a: (1, -1, 5) is not"),
        ("echo_pages", ([], [5]), "echo_pages: b[0]: 5 is not a mapping with the room for top"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_name(t, method, args, what):
    with pytest.raises(LayoutError) as caught:
        t.method(method).pack(*args)

    assert caught.value.what.startswith(what)
    assert caught.value.remedy


def test_more_buffers_than_fastrpc_takes_are_refused(t):
    assert len(t.method("seqstr").pack(["x"] * 252).inputs) == 254
    with pytest.raises(LayoutError, match="255 buffers"):
        t.method("seqstr").pack(["x"] * 253)


@pytest.mark.parametrize(
    "buffer",
    [b"\1\0\2\0", bytearray(4), memoryview(b"abcd"), np.arange(2, dtype=np.uint16),
     np.arange(6, dtype=np.uint16).reshape(3, 2), array("H", [1, 2, 3])],
    ids=["bytes", "bytearray", "memoryview", "numpy", "2d", "array"],
)  # fmt: skip
def test_a_buffer_goes_in_without_a_copy(t, buffer):
    call = t.method("seqs").pack(buffer, 1, ([], 0), 0)

    assert address(call.inputs[1]) == address(memoryview(buffer).cast("B"))
    assert call.inputs[1].nbytes == memoryview(buffer).nbytes


@pytest.mark.parametrize(
    "buffer",
    [np.zeros(2, np.uint32), np.zeros(2, np.float16), np.zeros(2, np.int16),
     np.zeros(2, ">u2"), np.zeros((4, 4), np.uint16)[:, ::2], np.zeros(2, bool)],
    ids=["u4", "f2", "i2", "big-endian", "strided", "bool"],
)  # fmt: skip
def test_a_buffer_of_something_else_is_refused(t, buffer):
    """Otherwise a float64 array for sequence<float> would arrive as twice as many wrong values."""
    with pytest.raises(LayoutError, match="seqs: a: "):
        t.method("seqs").pack(buffer, 1, ([], 0), 0)


def test_room_may_be_a_buffer_of_the_caller(t):
    memory = np.zeros(3, np.uint32)

    call = t.method("seqs").pack([1], memory, ([], 0), 0)
    call.outputs[0][4:8] = b"\7\0\0\0"

    assert address(call.outputs[0]) == memory.ctypes.data
    assert memory.tolist() == [0, 7, 0]
    assert call.unpack()[0].tolist() == [0, 7, 0]


def test_repack_changes_numbers_in_place(t):
    call = t.method("structs").pack(PRIM, PRIM, {"head": [1, 2, 3], "tail": 4})
    fresh = t.method("structs").pack(PRIM, PRIM | {"b": 9}, {"head": [7, 8, 9], "tail": 4})
    at = address(call.inputs[0])

    call.repack(c=PRIM | {"b": 9}, d={"head": [7, 8, 9], "tail": 4})

    assert call.inputs[0] == fresh.inputs[0]
    assert address(call.inputs[0]) == at


def test_repack_refuses_what_has_no_fixed_size(t):
    call = t.method("seqs").pack([1], 1, ([], 0), 5)

    with pytest.raises(LayoutError, match="a is not a parameter of fixed size"):
        call.repack(a=[1])
    with pytest.raises(LayoutError, match="e is not a parameter"):
        call.repack(e=1)


def test_a_repack_that_fails_changes_nothing(t):
    call = t.method("big").pack(1, 2, 3, 4)
    before = bytes(call.inputs[0])

    with pytest.raises(LayoutError, match="big: d: "):
        call.repack(a=7, d=-1)
    assert bytes(call.inputs[0]) == before
    call.repack(b=2)
    assert bytes(call.inputs[0]) == before


def test_a_repack_of_another_type_changes_nothing(t):
    call = t.method("structs").pack(PRIM, PRIM, {"head": [1, 2, 3], "tail": 4})
    before = bytes(call.inputs[0])

    with pytest.raises(LayoutError, match="structs: d: "):
        call.repack(a=PRIM | {"a": 9}, d=5)
    call.repack(c=PRIM)
    assert bytes(call.inputs[0]) == before


def test_text_that_is_not_utf8_comes_back_with_marks(t):
    call = t.method("strs").pack("", 4, ("", 1))
    call.outputs[0][:] = b"a\xff\0b"

    assert call.unpack() == ("a\ufffd", "")
