"""Test the IDL compiler: accepted text, the positions of errors, and hostile text."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npurt.errors import NpurtError
from npurt.hexagon import idl
from npurt.hexagon.idl.header import header
from npurt.hexagon.idl.skel import skel
from npurt.hexagon.idl.types import Array, Enum, SequenceType, String
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[2]
WIRE = Path(__file__).parent / "idl/wire.idl"


def inside(text):
    """Return an interface around *text*."""
    return f"interface x : remote_handle64 {{ {text} }};"


def place(text):
    """Return (line, column, message) of the error in *text*."""
    with pytest.raises(NpurtError) as caught:
        idl.parse(text, "some.idl")
    name, line, column, what = caught.value.what.split(":", 3)
    assert name == "some.idl"
    assert caught.value.remedy
    return int(line), int(column), what.strip()


def test_all_that_is_declared_is_there():
    t = idl.load(WIRE)

    assert (t.name, t.version) == ("t", "1.2.3")
    assert t.constants == {"UNIT": 8, "t_IDL_VERSION": "1.2.3", "t_HALF": 0.5}
    names = ("color", "prim", "arr", "bytes", "vec", "inner", "outer", "note", "page")
    assert list(t.types) == [f"t_{name}" for name in names]
    assert isinstance(t.types["t_color"], Enum)
    assert t.types["t_color"].members == ("RED", "GREEN", "BLUE")
    assert [m.id for m in t.methods] == list(range(2, len(t.methods) + 2))
    y = t.types["t_outer"].members["y"]
    assert isinstance(y, Array)
    assert y.length == 8
    text = t.types["t_note"].members["text"]
    assert isinstance(text, String)


def test_the_projects_own_interface_is_read():
    npurt = idl.load(PROJECT / "idl/npurt.idl")

    assert [(m.id, m.name) for m in npurt.methods][:3] == [(2, "echo"), (3, "info"), (4, "map")]
    assert npurt.uri.endswith(f"&_idlver={npurt.version}")


def test_layout_comments_and_includes_do_not_matter():
    text = (
        '#include <remote.idl>\n# include\t"AEEStdDef.idl"//x\ninterface/**/x:remote_handle64{'
        "AEEResult/* long\n m(); */m(in\nlong a);};//"
    )

    (method,) = idl.parse(text).methods

    assert (method.name, method.params[0].name) == ("m", "a")


@pytest.mark.parametrize(
    ("text", "value"),
    [("long A = -5", -5), ("long A = 0x7F", 127), ("unsigned long long A = 18446744073709551615",
     2**64 - 1), ("double A = -1.5e3", -1500.0), ("float A = 2", 2), ('string A = "a\\"\\\\b"',
     'a"\\b'), ("char A = 'x'", 120), ("char A = '\\n'", 10), ("boolean A = 1", 1)],
)  # fmt: skip
def test_constants_have_their_values(text, value):
    assert idl.parse(inside(f"const {text};")).constants == {"x_A": value}


def test_constants_may_stand_for_numbers():
    x = idl.parse(inside("const long A = 3; const long B = -A; struct s { octet p[A]; };"))

    assert x.constants["x_B"] == -3
    assert x.types["x_s"].given.size == 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("@", "expected a declaration or an interface, found the end of the file"),
        ("interface x @{", "expected ':', found {"),
        ("interface x : @remote_handle {", "expected 'remote_handle64', found remote_handle"),
        (inside("long m(in @longs a);"), "expected a type, built in or declared before, found l"),
        (inside("\n  long m(@long a);"), "expected in, rout or inrout, found long"),
        (inside("long m(in long a, @);"), "expected in, rout or inrout, found )"),
        ("interface x : remote_handle64 { long m(in long a @};", "expected ',', found }"),
        (inside("@void m();"), "expected AEEResult, long, a declaration or '}', found void"),
        (inside("long m(in long a@[3]);"), "expected ',', found ["),
        (
            inside("long m(); long @m();"),
            "expected the name of the method that is new: m is declared already",
        ),
        (inside("long @open();"), "expected another name: every interface has open"),
        (inside("long m(in long a, rout long @a);"), "expected the name of the parameter that is"),
        (inside("long m(in string a, in long @aLen);"), "expected the name of the parameter that"),
        (
            inside("long m(in long aLen, in @string a);"),
            "expected another name: the C of this interface uses aLen",
        ),
        (inside("long m(in long @register);"), "expected the name of the parameter"),
        (inside("const long A = 1; const long @A = 2;"), "expected the name of the constant that"),
        (inside("const octet A = @256;"), "expected a value of the type of A, found 256"),
        (inside("const long A = @1.5;"), "expected a value of the type of A"),
        (inside("const float A = @1e99;"), "expected a value of the type of A"),
        (inside("const double A = @1e999;"), "expected a value of the type of A"),
        (inside('const long A = @"5";'), "expected a value of the type of A"),
        (inside("const string A = @5;"), "expected a value of the type of A"),
        (inside("const long A = @B;"), "expected a number, a text, or a constant declared"),
        (inside('const string A = -@"5";'), "expected a number, a text, or a constant"),
        (inside("const long A = @017;"), "expected a declaration, found '0'"),
        (inside('const string A = @"x;\n";'), "expected a text that ends on its line"),
        (inside('const string A = @"\\q";'), "expected a text that ends on its line"),
        (inside('const string @IDL_VERSION = "1.2.3.4";'), "expected IDL_VERSION like"),
        (inside("enum e { @};"), "expected the name of a member, found }"),
        (inside("enum e { A @= 5 };"), "expected '}', found ="),
        (inside("enum e { A }; enum f { @A };"), "expected the name of a member that is new"),
        (inside("struct s { @};"), "expected a type, found }"),
        (inside("struct s { @s a; };"), "expected a type, built in or declared before"),
        (inside("struct s { long a[@0]; };"), "expected a length from 1 to 4096, found 0"),
        (inside("struct s { string a[@2]; };"), "expected a type of fixed size"),
        (inside("struct s { @dmahandle a; };"), "expected numbers, structs, strings"),
        (inside("struct @s { double a[513]; };"), "expected at most 32 types in types"),
        (inside("long m(in sequence<@sequence<long> > a);"), "expected the name of a type"),
        (inside("long m(in sequence<@dmahandle> a);"), "expected no dmahandle"),
        (inside("long @m(inrout dmahandle a);"), "expected parameters that make a call"),
        (inside("long m(in unsigned @octet a);"), "expected short or long, found octet"),
        (inside("typedef long\n  @/* never ends"), "expected */ at the end of this comment"),
        (inside("typedef @wstring w;"), "expected a type, built in or declared before"),
        ("interface x : remote_handle64 { }@", "expected ';', found the end of the file"),
        (inside("") + " @interface y", "expected the end of the file after its interface"),
        ('\n @#include "other.idl"\n', "expected #include of AEEStdDef.idl or remote.idl"),
        ("@#define X 1\n", "expected a declaration, found '#'"),
        ("interface x : remote_handle64 { long @é(); };", "expected a declaration, found"),
        ("@\ufeff" + inside(""), "expected a declaration"),
        ("@\0", "expected a declaration"),
    ],
)
def test_an_error_names_its_place_and_what_was_expected(text, what):
    before = text[: text.index("@")].split("\n")

    line, column, message = place(text.replace("@", "", 1))

    assert (line, column) == (len(before), len(before[-1]) + 1)
    assert message.startswith(what)


@pytest.mark.parametrize("kind", ["bytes", "vec"])
def test_inrout_of_what_has_buffers_within_buffers_is_refused(kind):
    declared = "typedef sequence<octet> bytes; struct vec { bytes v; };"

    assert "inrout" in place(inside(f"{declared} long m(inrout sequence<{kind}> a);"))[2]
    assert "inrout" in place(inside(f"{declared} long m(inrout vec a);"))[2]


def test_sequences_nest_twice_and_no_deeper():
    declared = "typedef sequence<octet> a; typedef sequence<a> b;"
    assert isinstance(idl.parse(inside(declared + "long m(in b v);")).types["x_b"], SequenceType)

    assert "no third sequence" in place(inside(declared + "long m(in sequence<b> v);"))[2]
    assert "as member" in place(inside(declared + "struct s { b v; };"))[2]


def test_nesting_ends_at_a_limit():
    """Without a limit, nested structs would exhaust the stack."""
    chain = "struct s0 { octet a; };"
    chain += "".join(f"struct s{i} {{ s{i - 1} a; }};" for i in range(1, 2000))

    assert "expected at most 32 types in types" in place(inside(chain))[2]


def test_sizes_end_at_a_limit():
    """Each struct is twice the size of the one before, up to 2^1000 bytes."""
    doubling = "struct s0 { octet a; };"
    doubling += "".join(f"struct s{i} {{ s{i - 1} a[2]; }};" for i in range(1, 1000))

    assert "and 4096 bytes" in place(inside(doubling))[2]


@pytest.mark.parametrize("text", ["(" * 10**6, "sequence<" * 10**5, "/*" * 10**5, '"' * 10**5])
def test_what_is_long_and_wrong_ends_soon(text):
    assert place(inside(text))[0] == 1


def test_a_file_that_is_too_large_is_refused():
    assert "expected at most 1048576 characters" in place(" " * (1 << 20) + " ")[2]


def test_what_cannot_be_called_is_refused():
    many = ", ".join(f"in string a{i}" for i in range(254))

    assert "at most 253 sequences" in place(inside(f"long m({many});"))[2]
    many = ", ".join(f"in dmahandle a{i}" for i in range(16))
    assert "at most 15 dmahandles" in place(inside(f"long m({many});"))[2]


def read(work):
    """Return the interface, or the error."""
    try:
        return work()
    except NpurtError as error:
        return error.what


@given(st.binary(max_size=200))
@example(b"interface x : remote_handle64 { \xff };")
def test_a_file_of_any_bytes_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.idl"
    path.write_bytes(data)
    outcome = read(lambda: idl.load(path))

    assert not isinstance(outcome, str) or outcome.startswith((f"{path}:", "cannot read"))


@given(st.data())
def test_damaged_text_is_read_or_refused(data):
    """Text that is still an interface can be written as C."""
    text = WIRE.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = (
            text[:start] + data.draw(st.sampled_from(["", "}", "{", ";", "in", "7"])) + text[end:]
        )
    outcome = read(lambda: idl.parse(text, "damaged"))

    if isinstance(outcome, str):
        assert outcome.startswith("damaged:")
    else:
        assert header(outcome)
        assert skel(outcome)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NpurtError, match=r"cannot read .*nothing\.idl"):
        idl.load(tmp_path / "nothing.idl")


# --- the command -------------------------------------------------------------------------------


def command(*args):
    command = [sys.executable, "-m", "npurt.hexagon.idl", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_SECONDS, cwd=PROJECT
    )


def test_the_command_lists_an_interface():
    done = command(WIRE)

    assert done.returncode == 0
    assert "  2  int t_prims(remote_handle64 h, int8_t a, uint64_t b, int16_t c" in done.stdout


def test_the_command_lists_an_interface_for_scripts():
    listed = json.loads(command(WIRE, "--json").stdout)

    assert listed["uri"].startswith("file:///libt_skel.so?t_skel_handle_invoke")
    assert [m["id"] for m in listed["methods"]] == list(range(2, len(listed["methods"]) + 2))
    assert listed["methods"][0]["sent"] == 33  # to the end of the last value: prims needs 33 bytes


def test_the_command_writes_the_same_c_each_time(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        assert command(WIRE, "--c", folder).returncode == 0

    for name in ("t.h", "t_skel.c"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert sorted(p.name for p in folders[0].iterdir()) == ["t.h", "t_skel.c"]


def test_the_command_fails_with_the_place_of_the_error(tmp_path):
    bad = tmp_path / "bad.idl"
    bad.write_text("interface x\n: remote {")

    done = command(bad, "--c", tmp_path)

    assert done.returncode == 1
    assert f"{bad}:2:3: expected 'remote_handle64', found remote" in done.stderr
    assert "remedy:" in done.stderr
    assert not list(tmp_path.glob("*.c"))


def test_the_command_says_where_it_cannot_write(tmp_path):
    (tmp_path / "file").write_text("")

    done = command(WIRE, "--c", tmp_path / "file/folder")

    assert done.returncode == 1
    assert "cannot write to" in done.stderr


def test_the_compiler_needs_nothing_heavy():
    """The build runs it before npurt is installed."""
    code = "import sys, npurt.hexagon.idl.skel; print([m for m in sys.modules if '.' not in m])"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=HANG_SECONDS,
    )

    assert loaded.returncode == 0, loaded.stderr
    assert not {"numpy", "cffi", "_cffi_backend"} & set(eval(loaded.stdout))  # noqa: S307
