"""Test the generated skel, compiled for this machine: valid calls arrive, others are refused."""

import json
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.hexagon import idl
from npurt.hexagon.idl.types import Array, Enum, SequenceType, String, Struct
from tests.hexagon.idl import host
from tests.limits import HANG_SECONDS

BADPARM, UNSUPPORTED, MEMALIGN, NOMEMORY = 0x8000040E, 0x80000414, 0x80000455, 0x80000402
VERSION_MISMATCH = 0x80000594
TEXT = st.text(max_size=20).filter(lambda s: "\0" not in s and "\ud800" not in s)


@pytest.fixture(scope="session")
def t():
    return idl.load(host.FOLDER / "wire.idl")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return host.build(tmp_path_factory.mktemp("skel"))


@pytest.fixture(scope="session")
def lib(library):
    return host.ffi.dlopen(str(library))


# --- values of any type, and what must come back ----------------------------------------------


def numbers(code):
    if code == "?":
        return st.booleans()
    if code in "fd":
        return st.floats(width=32 if code == "f" else 64, allow_nan=False)
    bits = 8 * struct.calcsize(f"<{code}")
    low = 0 if code.isupper() else -(1 << bits - 1)
    return st.integers(low, low + (1 << bits) - 1)


def values(kind):
    """Return a strategy of values of a type, as lists, dicts and plain numbers."""
    if isinstance(kind, Enum):
        return st.integers(0, len(kind.members) - 1)
    if isinstance(kind, String):
        return TEXT
    if isinstance(kind, SequenceType):
        return st.lists(values(kind.element), max_size=4)
    if isinstance(kind, Struct):
        return st.fixed_dictionaries({n: values(m) for n, m in kind.members.items()})
    if isinstance(kind, Array):
        return st.lists(values(kind.element), min_size=kind.length, max_size=kind.length)
    return numbers(kind.given.format)


def capacity_of(kind, value):
    """Return the space that *value* needs."""
    if isinstance(kind, String):
        return len(value.encode()) + 1
    if isinstance(kind, SequenceType):
        return [capacity_of(kind.element, v) for v in value] if kind.nesting > 1 else len(value)
    if isinstance(kind, Struct):
        return {n: capacity_of(m, value[n]) for n, m in kind.members.items() if not m.fixed}
    return None


def plain(value):
    """Return *value* with lists for memoryviews."""
    if isinstance(value, memoryview):
        return value.tolist()
    if isinstance(value, dict):
        return {n: plain(v) for n, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


ECHOES = [m.name for m in idl.load(host.FOLDER / "wire.idl").methods if m.name[:5] == "echo_"]


@pytest.mark.parametrize("name", ECHOES)
@settings(max_examples=20)
@given(data=st.data())
def test_what_goes_in_comes_back(name, t, lib, data):
    """The test has every type as in and rout; the C implementation copies arguments to results."""
    method = t.method(name)
    sent = {p.name: data.draw(values(p.type)) for p in method.params if p.goes_in}
    sources = iter([sent[p.name] for p in method.params if p.mode == "in"])
    args, back = [], []
    for p in method.params:
        if p.mode == "in":
            args.append(sent[p.name])
        elif p.mode == "inrout":
            args.append(sent[p.name])
            back.append(sent[p.name])
        else:
            back.append(next(sources))
            args += [] if p.type.fixed else [capacity_of(p.type, back[-1])]

    call = method.pack(*args)
    code = host.invoke(lib, call)

    assert code == 0
    got = [plain(value) for value in call.unpack()]
    if name == "echo_outer":  # the last element of y is larger by one, as uint16
        back[1] = back[1] | {"y": [*back[1]["y"][:-1], (back[1]["y"][-1] + 1) % 65536]}
    assert got == back


def test_numbers_arrive_as_c_has_them(t, lib):
    call = t.method("prims").pack(-3, 0x1000, -2, 2.5, 0.75, True)

    assert host.invoke(lib, call, handle=1) == 0
    #                   h     b        c           f * 16    g * 1024
    expected = 1 ^ 0x1000 ^ (2**64 - 2) ^ 40 ^ 768
    assert call.unpack() == (253, expected, False)


def test_inrout_starts_from_what_goes_in(t, lib):
    call = t.method("io").pack(0xFFFFFFFF, 40)

    assert host.invoke(lib, call) == 0
    assert call.unpack() == (0, 42)


def test_sequences_have_their_room(t, lib):
    floats = np.array([1.5, -2], np.float32)
    call = t.method("seqs").pack([1, 2, 3], 5, (floats, 3), 100)

    assert host.invoke(lib, call) == 0
    b, c = call.unpack()
    assert b.tolist() == [101, 102, 103, 100, 100]
    assert c.tolist() == [3, -4, 0]


def test_strings_end_where_there_is_no_more_room(t, lib):
    call = t.method("strs").pack("hello", 4, ("ab", 8))

    assert host.invoke(lib, call) == 0
    assert call.unpack() == ("hel", "AB")


def test_structs_and_enums_arrive_as_c_has_them(t, lib):
    call = t.method("structs").pack(
        {"a": -1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}, {"head": b"\x09\x00\x00", "tail": 70}
    )
    enums = t.method("enums").pack("GREEN")

    assert host.invoke(lib, call) == 0
    assert call.unpack() == ({"a": -1, "b": 72, "c": 12}, {"a": 4, "b": 5, "c": -6})
    assert host.invoke(lib, enums) == 0
    assert enums.unpack() == (2,)


def test_strings_in_a_sequence_end_with_a_nul(t, lib):
    call = t.method("seqstr").pack(["one", "three", ""])

    assert host.invoke(lib, call) == ord("o") + ord("t")


def test_handles_arrive_with_the_length_that_the_runtime_knows(t, lib):
    dma = t.method("dma").pack((9, 16, 36864))
    both = t.method("handles").pack((3, 5, 12288), idl.DmaHandle(6, 7, 24576))

    assert host.invoke(lib, dma) == 0
    assert dma.unpack() == (9 + 16 + 36864,)
    assert host.invoke(lib, t.method("dmas").pack((7, 0, 64), (8, 4, 64))) == 0
    assert host.invoke(lib, both) == 0
    assert both.unpack() == (3 << 40 | 5 << 24 | 6 << 8 | 7,)


def test_an_error_comes_back_and_no_result_does(t, lib):
    call = t.method("fails").pack(-5, 99)

    assert host.invoke(lib, call) == 2**32 - 5
    assert call.unpack() == (0, 0)  # not the 1 and 2 that the implementation set


def test_the_handle_is_what_open_gave(t, lib):
    assert host.invoke(lib, t.method("none").pack(), handle=77) == 77


def test_a_call_is_made_again_with_other_numbers(t, lib):
    call = t.method("big").pack(1, 2, 3, 4)
    first = [host.ffi.from_buffer(buf) for buf in call.inputs]

    call.repack(a=10, d=40)

    assert host.invoke(lib, call) == 10 + 4 + 9 + 160
    assert [host.ffi.from_buffer(buf) for buf in call.inputs] == first  # the same memory


# --- open and close ----------------------------------------------------------------------------


def open_skel(lib, uri):
    """Open the skel as the DSP's runtime does; return the code and the handle."""
    text = host.ffi.new("char[]", uri)
    sent = host.ffi.new("uint32_t *", len(uri) + 1)
    args = host.ffi.new("remote_arg[3]")
    args[0].buf.pv, args[0].buf.nLen = sent, 4
    args[1].buf.pv, args[1].buf.nLen = text, len(uri) + 1
    return lib.t_skel_handle_invoke(0, 0x00020001, args) & 0xFFFFFFFF, args[2].h64


def test_open_gives_the_handle_and_close_takes_it(t, lib):
    uri = t.uri.encode() + b"&_dom=cdsp"
    code, handle = open_skel(lib, uri)
    args = host.ffi.new("remote_arg[1]")
    args[0].h64 = handle

    assert (code, handle) == (0, 0x1122334455667788 + len(uri))
    assert lib.t_skel_handle_invoke(0, 0x01000010, args) == 0
    args[0].h64 = 5
    assert lib.t_skel_handle_invoke(0, 0x01000010, args) == 7


@pytest.mark.parametrize("version", [b"1.2.3", b"1.2.2", b"1.2", b"1", b"0.999.999", b"1.2.3&_x=y"])
def test_a_stub_as_old_as_the_skel_or_older_may_open(lib, version):
    assert open_skel(lib, b"file:///a?b&_idlver=" + version)[0] == 0


@pytest.mark.parametrize(
    "tail",
    [b"", b"&_idlver=", b"&_idlver=1.2.4", b"&_idlver=1.3", b"&_idlver=2", b"&_idlver=1.2.3.0",
     b"&_idlver=x", b"&_idlver=1.2.0003", b"&_idlver=-1", b"&_idl", b"&_idlver=1.2.3x"],
)  # fmt: skip
def test_a_newer_stub_or_one_without_a_version_may_not(lib, tail):
    assert open_skel(lib, b"file:///a?b" + tail)[0] == VERSION_MISMATCH


CONSTANTS = """
const long LOW = -2147483648; const unsigned long long HIGH = 18446744073709551615;
interface k : remote_handle64 {
    const long long LOWEST = -9223372036854775808; const double HALF = -0.5;
    const string TEXT = "a\\"\\\\??/\\n%";
    typedef unsigned long word; typedef string text; typedef dmahandle memory;
    enum color { RED, GREEN }; typedef color shade; struct pair { word a; shade b[3]; };
    long m(in text a, in memory b, rout pair c);
};
"""
ASSERTED = r"""
#include "k.h"
#include <string.h>
_Static_assert(LOW == -2147483647 - 1 && HIGH == 0xffffffffffffffffull, "");
_Static_assert(k_LOWEST == -9223372036854775807ll - 1 && k_HALF == -0.5, "");
_Static_assert(sizeof(k_TEXT) == 9 && sizeof(k_word) == 4 && sizeof(k_pair) == 16, "");
_Static_assert(GREEN == 1 && sizeof(k_shade) == 4, "");
int text(void) { return memcmp(k_TEXT, "a\"\\\077\077/\n%", 9); }
"""


def test_constants_and_other_names_of_types_are_what_the_interface_says(tmp_path):
    source = tmp_path / "asserted.c"
    source.write_text(ASSERTED)
    (tmp_path / "k.idl").write_text(CONSTANTS)
    (tmp_path / "k_impl.c").write_text(
        '#include "k.h"\nint k_open(const char *u, remote_handle64 *h) { return !u || !h; }\n'
        "int k_close(remote_handle64 h) { return h != 0; }\n"
        "int adsp_mmap_fd_getinfo(int f, uint32_t *n) { *n = 1; return f; }\n"
        "int k_m(remote_handle64 h, const char *a, int b, uint32_t bOffset, uint32_t bLen,"
        " k_pair *c) { c->a = bOffset + bLen; return h && a && b; }\n"
    )

    library = host.build(tmp_path, tmp_path / "k.idl", (source, tmp_path / "k_impl.c"))
    ffi = host.cffi.FFI()
    ffi.cdef("int text(void);")

    assert ffi.dlopen(str(library)).text() == 0


# --- wrong calls -------------------------------------------------------------------------------


def fenced(library, calls):
    """Make calls in a separate process, with inaccessible pages around every buffer."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hexagon.idl.host", library],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    last = done.stderr.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"signal {-done.returncode} at {calls[int(last)]}"
    return json.loads(done.stdout)


def raw(call):
    handles = [h.fd for h in call.handles_in + call.handles_out]
    ins, outs = [b.hex() for b in call.inputs], [len(b) for b in call.outputs]
    return call.scalars, ins, outs, handles


def arguments(kind, rng):
    if isinstance(kind, String):
        return "x" * rng.randrange(1, 9)
    if isinstance(kind, SequenceType):
        return [arguments(kind.element, rng) for _ in range(rng.randrange(1, 4))]
    if isinstance(kind, Struct):
        return {n: arguments(m, rng) for n, m in kind.members.items()}
    if isinstance(kind, Array):
        return [arguments(kind.element, rng) for _ in range(kind.length)]
    return 1


def good_call(method, rng):
    args = []
    for p in method.params:
        if p.is_passed and hasattr(p.type, "handle"):
            args.append((3, 0, 4))
        elif p.is_passed:
            value = arguments(p.type, rng)
            both = p.mode == "inrout" and not p.type.fixed
            capacity = capacity_of(p.type, value)
            args.append((value, capacity) if both else value if p.goes_in else capacity)
    return raw(method.pack(*args))


def test_right_calls_touch_nothing_outside_of_their_buffers(t, library):
    rng = random.Random(0)
    calls = [good_call(m, rng) for m in t.methods for _ in range(5)]

    codes = fenced(library, calls)

    refused = {BADPARM, UNSUPPORTED, NOMEMORY}
    assert not refused & set(codes)
    # A buffer of 8-byte elements that ends at a page is aligned, so none is refused for alignment.
    assert MEMALIGN not in codes


def test_calls_with_a_buffer_less_or_more_are_refused(t, library):
    rng = random.Random(1)
    calls = []
    for method in t.methods:
        scalars, ins, outs, handles = good_call(method, rng)
        calls.append((scalars + (1 << 16), [*ins, ""], outs, handles))
        calls.append((scalars + (1 << 8), ins, [*outs, 0], handles))
        if ins:
            calls.append((scalars - (1 << 16), ins[:-1], outs, handles))
        if outs:
            calls.append((scalars - (1 << 8), ins, outs[:-1], handles))
        calls.append((scalars ^ 0x20, ins, outs, [*handles, 1, 2, 3]))
        calls.append((scalars ^ 0x02, ins, outs, [*handles, 1, 2, 3]))

    assert set(fenced(library, calls)) == {BADPARM}


def test_calls_with_a_short_buffer_are_refused(t, library):
    rng = random.Random(2)
    calls = []
    for method in t.methods:
        scalars, ins, outs, handles = good_call(method, rng)
        exact = [method.sent.size] + [len(i) // 2 for i in ins[1:]]
        for i, data in enumerate(ins):
            short = data[: 2 * (exact[i] - 1)]
            calls.append((scalars, [*ins[:i], short, *ins[i + 1 :]], outs, handles))
        exact = [method.answer.size or (outs or [0])[0], *outs[1:]]
        for i in range(len(outs)):
            calls.append((scalars, ins, [*outs[:i], exact[i] - 1, *outs[i + 1 :]], handles))

    assert set(fenced(library, calls)) <= {BADPARM, MEMALIGN}  # a short buffer may be misaligned


def test_blocks_may_be_as_short_as_what_they_hold(t, library):
    """The stub rounds their sizes up; the skel only needs the bytes up to the last value."""
    scalars, (block, *ins), (_, *outs), handles = good_call(t.method("prims"), random.Random(3))
    assert len(block) == 2 * 40

    codes = fenced(library, [(scalars, [block[: 2 * 33], *ins], [17, *outs], handles)])

    assert codes == [0]


def test_counts_that_lie_are_refused(t, library):
    """The test sets each word of each block to 0xffffffff, 2^31, and one more than its value."""
    calls = []
    for name in ("seqs", "strs", "cplx", "seqstruct", "seqseq", "seqstr", "echo_pages"):
        scalars, ins, outs, handles = good_call(t.method(name), random.Random(4))
        heads = 3 if name in ("seqseq", "seqstr", "echo_pages") else 1
        for i in range(min(heads, len(ins))):
            data = bytes.fromhex(ins[i])
            for at in range(0, len(data) - 3, 4):
                (count,) = struct.unpack_from("<I", data, at)
                for lie in (0xFFFFFFFF, 1 << 31, 0x7FFFFFFF, count + 1):
                    word = struct.pack("<I", lie)
                    bad = data[:at] + word + data[at + 4 :]
                    calls.append((scalars, [*ins[:i], bad.hex(), *ins[i + 1 :]], outs, handles))

    codes = fenced(library, calls)

    assert len(calls) > 100
    assert sum(code in (BADPARM, NOMEMORY) for code in codes) > len(codes) / 2
    # Other words are plain numbers or padding, so the call is valid.


def test_text_without_its_nul_is_refused(t, library):
    scalars, ins, outs, handles = raw(t.method("strs").pack("hey", 16, ("ab", 8)))
    calls = [
        (scalars, [ins[0], "68657979", ins[2]], outs, handles),
        (scalars, [ins[0], ins[1], "616262"], outs, handles),
    ]
    scalars, ins, outs, handles = raw(t.method("seqstr").pack(["one", "three"]))
    calls.append((scalars, [*ins[:2], "6f6e6565", ins[3]], outs, handles))
    scalars, ins, outs, handles = raw(t.method("seqstr").pack(["a"]))
    calls.append((scalars, [ins[0], "00000000", ""], outs, handles))  # not even the NUL

    assert fenced(library, calls) == [BADPARM] * 4


def test_inrout_without_room_for_what_comes_in_is_refused(t, library):
    scalars, ins, _, handles = raw(t.method("strs").pack("hey", 16, ("abcd", 8)))
    head = struct.pack("<4I", 4, 16, 5, 4).hex()

    assert fenced(library, [(scalars, [head, *ins[1:]], [16, 4], handles)]) == [BADPARM]


def test_more_elements_than_the_stack_holds_are_refused(t, library):
    scalars, ins, outs, handles = raw(t.method("echo_pages").pack([], []))
    pages = 8192 // 96 + 1  # sizeof(t_page) here
    block = bytearray.fromhex(ins[0])
    struct.pack_into("<I", block, 4, pages)  # after the id
    calls = [(scalars + (pages << 16), [block.hex(), *ins[1:], *[""] * pages], outs, handles)]

    assert fenced(library, calls) == [NOMEMORY]


def test_a_misaligned_buffer_of_wide_elements_is_refused(lib, t):
    memory = bytearray(8 * 4 + 1)
    offset = int(int(host.ffi.cast("uintptr_t", host.ffi.from_buffer(memory))) % 8 == 0)
    call = t.method("echo_uint64").pack(memoryview(memory)[offset : offset + 32], 1, 4)

    assert host.invoke(lib, call) == MEMALIGN


@pytest.mark.parametrize("number", [42, 100, 0xFFFFFFFF, 30, 0, 1])
def test_a_method_that_there_is_not_is_unsupported(library, number):
    """The long form of ids must not contain ids below 31 either."""
    block = struct.pack("<I", number).hex()

    assert fenced(library, [(0x1F010000, [block], [], [])]) == [UNSUPPORTED]


def test_a_call_by_the_long_way_needs_its_id(library):
    assert fenced(library, [(0x1F010000, ["1f0000"], [], []), (0x1F000000, [], [], [])]) == [
        BADPARM,
        BADPARM,
    ]


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_random_damage_never_leaves_the_buffers(t, library, seed):
    rng = random.Random(seed)
    calls = []
    for method in rng.choices(t.methods, k=150):
        scalars, ins, outs, handles = good_call(method, rng)
        ins = [bytearray.fromhex(i) for i in ins]
        for _ in range(rng.randrange(1, 4)):
            if ins and rng.random() < 0.7:
                data = rng.choice(ins)
                if data:
                    data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255])
                    del data[rng.randrange(1, len(data) + 1) :]
            elif outs:
                outs[rng.randrange(len(outs))] = rng.randrange(0, 40)
        calls.append((scalars, [i.hex() for i in ins], outs, handles))

    assert len(fenced(library, calls)) == 150


def test_the_skel_needs_no_library_on_the_dsp(t, library, tmp_path):
    """The skel is linked for Hexagon v68 with the implementation of the interface only."""
    zig = [sys.executable, "-m", "ziglang"]
    target = ["-target", "hexagon-freestanding", "-mcpu=hexagonv68", "-fno-sanitize=all"]
    flags = ["-std=c11", "-O2", "-ffreestanding", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c"]
    skel, obj = library.parent / "t_skel.c", tmp_path / "skel.o"
    names = ["t_open", "t_close", "adsp_mmap_fd_getinfo", *(f"t_{m.name}" for m in t.methods)]
    link = [*zig, "ld.lld", "-shared", "-z", "defs", obj, "-o", tmp_path / "skel.so"]

    subprocess.run([*zig, "cc", *target, *flags, skel, "-o", obj], check=True, timeout=HANG_SECONDS)
    linked = subprocess.run([*link, *(f"--defsym={n}=0" for n in names)], timeout=HANG_SECONDS)
    missing = subprocess.run(
        [*link, *(f"--defsym={n}=0" for n in names[1:])], capture_output=True, timeout=HANG_SECONDS
    )

    assert linked.returncode == 0
    assert missing.returncode != 0
