"""Test that the skel has no HVX float instruction: emulators are wrong, and v79 has others.

The test searches the compiler's assembly for instructions whose registers are read or written as
.sf, .hf, .bf, .qf32, .qf16 or .f8.
Source: LLVM, lib/Target/Hexagon/HexagonDepInstrInfo.td.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools import build
from tools.build import hexagon, zig

FLOAT = re.compile(r"\bv\d+(?::\d+)?\.(?:cur\.)?(?:qf32|qf16|sf|hf|bf|f8)\b")
SOURCES = [*hexagon.skel_sources(), *hexagon.rtlib()]


def listing(source, arch, folder, defines=(), includes=(hexagon.DSP, hexagon.IDL)):
    """Return the assembly that the skel's compiler makes from *source*."""
    out = folder / f"{source.stem}.s"
    flags = hexagon.job(source, arch, defines, includes).flags
    unused = "-Wno-unused-command-line-argument"  # zig adds a -c
    zig.zig("cc", *flags, unused, "-S", source.resolve(), "-o", out)
    return out.read_text()


# Instructions of LLVM: test/MC/Hexagon/hvx-v68.s, test/CodeGen/Hexagon/autohvx/qfp-*.ll.
@pytest.mark.parametrize(
    "line",
    [
        "v0.qf32 = vadd(v1.sf,v2.sf)",
        "v0.sf = v1.qf32",
        "v1:0.qf32 = vmpy(v2.qf16,v3.hf)",
        "v3.w = vfmv(v2.w) ; v4.hf = vadd(v5.hf,v6.hf)",
        "v1:0.sf = vcvt(v2.hf)",
        "q0 = vcmp.gt(v1.sf,v2.sf)",
    ],
)
def test_a_float_instruction_is_seen(line):
    assert FLOAT.search(line)


def test_integer_instructions_are_let_through():
    assert not FLOAT.search("v0.w += vrmpy(v1.ub,r0.b)\nv2.h = vasr(v1.w,v0.w,r3):rnd:sat\nv3.cur")


@pytest.mark.parametrize("arch", build.ARCHS)
def test_the_skel_has_none(arch, tmp_path):
    generated = tmp_path / "idl"
    hexagon.generate(generated)
    includes = (hexagon.DSP, hexagon.IDL, generated)

    def floats(source):
        return FLOAT.findall(listing(source, arch, tmp_path, includes=includes))

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(SOURCES, pool.map(floats, SOURCES), strict=True))

    assert {source.name: seen for source, seen in found.items() if seen} == {}
    assert len(found) > 10
