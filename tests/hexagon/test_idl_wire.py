"""Test the bytes of calls against calls captured from stubs that qaic 01.00.51 generated."""

import struct
from pathlib import Path

import pytest

from npurt.hexagon import idl

FIXTURES = Path(__file__).parent / "idl"
PRIM = {"a": 1, "b": 2, "c": 3}
F32_ONE_TWO = struct.pack("<2f", 1, 2)

# method, arguments, scalars, buffers in (hex; a number: that many bytes), sizes of buffers out
CAPTURED = [
    ("prims", (0x7F, 0x1122334455667788, 0x0A0B, 1.0, 2.0, True), 0x02010100,
     ["7f000000 00000000 88776655 44332211 0b0a0000 0000803f 00000000 00000040 01000000 00000000"],
     [24]),
    ("io", (0x11, 0x22), 0x03010100, ["11000000 00000000 22000000 00000000"], [16]),
    ("seqs", ([1, 2, 3], 4, (F32_ONE_TWO, 2), 0xDEAD), 0x04030200,
     ["03000000 04000000 02000000 02000000 adde0000", 6, 8], [16, 8]),
    ("strs", ("hey", 16, ("ab", 8)), 0x05030200,
     ["04000000 10000000 03000000 08000000", "68657900", "616200"], [16, 8]),
    ("structs", (PRIM, {"a": 4, "b": 5, "c": 6}, {"head": [7, 8, 9], "tail": 10}), 0x06010100,
     ["01000000 00000000 02000000 00000000 03000000 00000000"
      "04000000 00000000 05000000 00000000 06000000 00000000 07080900 0a000000"], [48]),
    ("enums", (2,), 0x07010100, ["02000000"], [4]),
    ("cplx", ({"n": 0x99, "v": [1, 2, 3], "z": 0x77}, {"v": 5}), 0x08020200,
     ["99000000 03000000 77000000 00000000 05000000 00000000", "01000000 02000000 03000000"],
     [16, 20]),
    ("seqstruct", ([PRIM, PRIM], 3), 0x09020100, ["02000000 03000000", 48], [72]),
    ("seqseq", ([b"abc", b"defgh"], [10, 20]), 0x0A050200,
     ["02000000 02000000", "03000000 05000000", "616263", "6465666768", "0a000000 14000000"],
     [10, 20]),
    ("seqstr", (["one", "three"],), 0x0B040000,
     ["02000000", "04000000 06000000", "6f6e6500", "746872656500"], []),
    ("dma", ((9, 16, 4096),), 0x0C000110, [], [4]),
    ("dmas", ((7, 0, 64), (8, 4, 64)), 0x0D000011, [], []),
    ("none", (), 0x0E000000, [], []),
    ("big", (1, 2, 3, 4), 0x0F010000,
     ["01000000 00000000 02000000 00000000 03000000 00000000 04000000 00000000"], []),
]  # fmt: skip


PRIMS = [{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}]
PAGE = {
    "top": {"kind": 9, "text": "hey", "prims": PRIMS, "at": {"a": 7, "b": [8, 9], "c": "GREEN"}},
    "number": 0x1234,
    "body": b"\1\2\3",
}
EMPTY = {
    "top": {"kind": 1, "text": "", "prims": [], "at": {"a": 2, "b": [3, 4], "c": "BLUE"}},
    "number": 5,
    "body": b"",
}
OUTER = {
    "x": [{"a": 1, "b": [0, 2], "c": "BLUE"}, {"a": 3, "b": [4, 0], "c": "RED"}],
    "y": list(range(10, 18)),
    "z": True,
}

# The same for nested structs and sequences of them; ids above 30 are in the first buffer.
NESTED = [
    (
        "echo_page",
        (PAGE, {"top": {"text": 8, "prims": 3}, "body": 5}),
        0x1F040400,
        [
            "2500000000000000090000000400000002000000000000000700000000000000"
            "0800000000000000090000000000000001000000000000003412000003000000"
            "08000000030000000500000000000000",
            "68657900",
            "0100000000000000020000000000000003000000000000000400000000000000"
            "05000000000000000600000000000000",
            "010203",
        ],
        [48, 8, 72, 5],
    ),
    (
        "echo_pages",
        ([PAGE, EMPTY], [{"top": {"text": 8, "prims": 3}, "body": 5}]),
        0x1F090400,
        [
            "260000000200000001000000",
            "0900000004000000020000000000000007000000000000000800000000000000"
            "0900000000000000010000000000000034120000030000000100000001000000"
            "0000000000000000020000000000000003000000000000000400000000000000"
            "02000000000000000500000000000000",
            "68657900",
            "0100000000000000020000000000000003000000000000000400000000000000"
            "05000000000000000600000000000000",
            "010203",
            "00",
            "",
            "",
            "080000000300000005000000",
        ],
        [48, 8, 72, 5],
    ),
    (
        "echo_texts",
        (["one", ""], [3, 9], [b"\xaa\xbb"], [5]),
        0x1F080300,
        [
            "2700000002000000020000000100000001000000",
            "0400000001000000",
            "6f6e6500",
            "00",
            "0300000009000000",
            "02000000",
            "aabb",
            "05000000",
        ],
        [3, 9, 5],
    ),
    (
        "echo_outer",
        (OUTER, OUTER, [OUTER], 2),
        0x1F020200,
        [
            "2400000000000000010000000000000000000000000000000200000000000000"
            "0200000000000000030000000000000004000000000000000000000000000000"
            "00000000000000000a000b000c000d000e000f00100011000100000000000000"
            "0100000000000000000000000000000002000000000000000200000000000000"
            "0300000000000000040000000000000000000000000000000000000000000000"
            "0a000b000c000d000e000f001000110001000000000000000100000002000000",
            "0100000000000000000000000000000002000000000000000200000000000000"
            "0300000000000000040000000000000000000000000000000000000000000000"
            "0a000b000c000d000e000f00100011000100000000000000",
        ],
        [176, 176],
    ),
    (
        "echo_int8",
        ([1, 2, 3], -1, 2),
        0x10020200,
        [
            "03000000ff00000002000000",
            "010203",
        ],
        [1, 2],
    ),
    (
        "echo_unsigned_long_long",
        ([7], 5, 2),
        0x1F020200,
        [
            "230000000100000005000000000000000200000000000000",
            "0700000000000000",
        ],
        [8, 16],
    ),
    (
        "fails",
        (-2, 3),
        0x1F010100,
        [
            "28000000feffffff0300000000000000",
        ],
        [16],
    ),
]


@pytest.fixture(scope="module")
def t():
    return idl.load(FIXTURES / "wire.idl")


def many(count):
    """Return an interface of methods with ids from 2 to count + 1; the last two have arguments."""
    text = "interface m : remote_handle64 {\n"
    text += "".join(f"long m{i}(in uint64 a, in uint32 b, rout uint32 c);\n" for i in range(count))
    return idl.parse(text + "long n(); };")


@pytest.mark.parametrize(
    ("method", "args", "scalars", "inputs", "outputs"),
    [*CAPTURED, *NESTED],
    ids=[c[0] for c in CAPTURED + NESTED],
)
def test_a_call_has_the_bytes_that_qaic_sends(t, method, args, scalars, inputs, outputs):
    call = t.method(method).pack(*args)

    assert f"{call.scalars:08x}" == f"{scalars:08x}"
    assert [len(o) for o in call.outputs] == outputs
    assert len(call.inputs) == len(inputs)
    for sent, captured in zip(call.inputs, inputs, strict=True):
        if isinstance(captured, int):
            assert len(sent) == captured
        else:
            assert sent.hex() == captured.replace(" ", "")


def test_handles_are_in_order_of_their_direction(t):
    call = t.method("dmas").pack((7, 0, 64), (8, 4, 64))

    assert call.handles_in == (idl.DmaHandle(8, 4, 64),)
    assert call.handles_out == (idl.DmaHandle(7, 0, 64),)


def test_ids_from_31_on_lie_in_the_first_buffer():
    call = many(40).method("m29").pack(1, 2)

    assert call.method.id == 31
    assert call.scalars == 0x1F010100
    assert call.inputs[0].hex() == "1f00000000000000" + "0100000000000000" + "0200000000000000"
    assert [len(o) for o in call.outputs] == [4]


def test_the_id_before_lies_in_the_scalars():
    call = many(40).method("m28").pack(1, 2)

    assert (call.method.id, call.scalars, len(call.inputs[0])) == (30, 0x1E010100, 16)


def test_a_method_without_arguments_still_sends_its_id():
    call = many(34).method("n").pack()

    assert (call.scalars, call.inputs[0].hex()) == (0x1F010000, "24000000")


def test_ggml_htp_iface_has_the_offsets_captured_from_its_stub():
    htp = idl.parse(
        """interface htp_iface : remote_handle64 {
        AEEResult start(in uint32 a, in uint64 b, in uint32 c, in uint32 d, in uint64 e);
        AEEResult stop();
        AEEResult mmap(in uint32 fd, in uint32 pinned);
        AEEResult munmap(in uint32 fd);
        struct events { uint32 id[8]; };
        AEEResult profiler(in uint32 mode, in events pmu);
        AEEResult etm(in uint32 enable);
        AEEResult hwinfo(rout uint32 a, rout uint32 b, rout uint32 c, rout uint64 d); };"""
    )

    assert [(m.id, m.sent.size) for m in htp.methods] == [
        (2, 32), (3, 0), (4, 8), (5, 4), (6, 36), (7, 4), (8, 0)
    ]  # fmt: skip
    assert htp.method("start").sent_offsets == [0, 8, 16, 20, 24]
    assert htp.method("hwinfo").answer_offsets == [0, 4, 8, 16]
    assert htp.method("hwinfo").answer.size == 24


def test_the_uri_is_that_of_the_header_qaic_writes(t):
    assert t.uri == "file:///libt_skel.so?t_skel_handle_invoke&_modver=1.0&_idlver=1.2.3"
