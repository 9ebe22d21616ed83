"""Test interfaces that were compiled to Python by the build."""

import inspect
import runpy
import subprocess
import sys
import tempfile

import pytest

from npurt.hexagon import idl
from npurt.hexagon.idl import interface as ours
from npurt.hexagon.idl import shared
from npurt.hexagon.idl.__main__ import main
from npurt.hexagon.idl.header import header
from npurt.hexagon.idl.python import python
from npurt.hexagon.idl.skel import skel

EVERY_TYPE = """
interface every : remote_handle64 {
    const string IDL_VERSION = "1.2.3";
    const long LIMIT = 5;
    enum color_t { RED, GREEN };
    struct point_t { long x; double y; octet tag[6]; };
    struct shape_t { color_t color; point_t corners[2]; sequence<long> holes; };
    AEEResult numbers(in octet a, in int64 b, rout uint64 c, inrout float d);
    AEEResult values(in shape_t shape, rout sequence<point_t> points, in dmahandle memory);
    AEEResult texts(in sequence<string> texts, rout string answer, in color_t color);
};
"""


def compiled(interface):
    with tempfile.NamedTemporaryFile("w", suffix=".interface") as file:
        file.write(python(interface))
        file.flush()
        return runpy.run_path(file.name)["INTERFACE"]


@pytest.mark.parametrize("text", [EVERY_TYPE, shared.path_of(ours.SOURCE).read_text()])
def test_a_compiled_interface_is_the_parsed_one(text):
    """The generated C contains every name, number, type and constant."""
    parsed = idl.parse(text)

    made = compiled(parsed)

    assert skel(made) == skel(parsed)
    assert header(made) == header(parsed)
    assert made.uri == parsed.uri
    assert dict(made.constants) == dict(parsed.constants)
    assert list(made.types) == list(parsed.types)


def test_calls_of_a_compiled_interface_have_the_same_bytes():
    parsed = idl.parse(EVERY_TYPE)
    corner = {"x": -1, "y": 0.5, "tag": bytes(6)}
    shape = {"color": "GREEN", "corners": [corner, corner], "holes": [7, 8]}
    calls = [
        each.method("values").pack(shape, 3, (5, 0, 64)) for each in (parsed, compiled(parsed))
    ]
    assert calls[0].scalars == calls[1].scalars
    assert calls[0].inputs == calls[1].inputs
    assert calls[0].handles_in == calls[1].handles_in == ((5, 0, 64),)


def test_the_build_compiled_the_interface_of_the_skel():
    """Opening a device then needs neither lexer nor parser."""
    code = (
        "import sys; from npurt.hexagon.idl.interface import interface; interface(); "
        "print({'npurt.hexagon.idl.lexer', 'npurt.hexagon.idl.parser'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"


def test_an_idl_that_changed_after_the_build_is_parsed(tmp_path, monkeypatch):
    source, out = tmp_path / "npurt.idl", tmp_path / "npurt.interface"
    text = shared.path_of(ours.SOURCE).read_text()
    source.write_text(text)
    assert main([str(source), "--python", str(out)]) == 0
    monkeypatch.setattr(ours, "COMPILED", out)
    monkeypatch.setattr(shared, "path_of", lambda name: source)
    monkeypatch.setattr(ours, "load", lambda path: "parsed")
    fresh = inspect.unwrap(ours.interface)  # without its cache

    assert fresh().name == "npurt"
    source.write_text(text.replace("echo", "ping"))
    assert fresh() == "parsed"
    out.unlink()
    assert fresh() == "parsed"
