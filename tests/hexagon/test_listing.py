"""No HVX float instruction in the skel: emulators get them wrong, and v79 has other ones.

Looked for in what the compiler lists; the instructions are those whose registers are read or
written as .sf, .hf, .bf, .qf32, .qf16 or .f8.
Source: LLVM, lib/Target/Hexagon/HexagonDepInstrInfo.td.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from npurt import build, build_hexagon

FLOAT = re.compile(r"\bv\d+(?::\d+)?\.(?:cur\.)?(?:qf32|qf16|sf|hf|bf|f8)\b")
SOURCES = [*build_hexagon.skel_sources(), *build_hexagon.rtlib()]

CONTROL = """
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>
HVX_Vector f(HVX_Vector a, HVX_Vector b);
HVX_Vector f(HVX_Vector a, HVX_Vector b)
{
    (void) b;
    return %s;
}
"""


def listing(source, arch, folder, **options):
    out = folder / f"{source.stem}.s"
    return build_hexagon.compile_listing(source, out, arch=arch, **options).read_text()


@pytest.mark.parametrize(
    "expression",
    ["Q6_Vqf32_vadd_VsfVsf(a, b)", "Q6_Vqf16_vmpy_VhfVhf(a, b)", "Q6_Vsf_equals_Vqf32(a)"],
)
def test_a_float_instruction_is_seen(expression, tmp_path):
    source = tmp_path / "control.c"
    source.write_text(CONTROL % expression)

    assert FLOAT.search(listing(source, "v68", tmp_path))


@pytest.mark.parametrize("arch", [build.ARCHS[0], build.ARCHS[-1]])
def test_the_skel_has_none(arch, tmp_path):
    """In its oldest and its newest build, whose compilers know the most different instructions."""
    generated = tmp_path / "idl"
    build_hexagon.generate(generated)
    includes = (build_hexagon.DSP, build_hexagon.IDL, generated)

    def floats(source):
        return FLOAT.findall(listing(source, arch, tmp_path, includes=includes))

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(SOURCES, pool.map(floats, SOURCES), strict=True))

    assert {source.name: seen for source, seen in found.items() if seen} == {}
    assert len(found) > 10
