"""Test the recognition of files for the DSP, and the check that the DSP would load them."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cli import main
from npurt.errors import LayoutError
from npurt.hexagon.doctor import elf
from npurt.hexagon.doctor.loadable import verify
from tests.hexagon.objects import shared_object
from tools import build

FOREIGN = Path(__file__).parents[1] / "data/skel/calculator_skel_v68.elf"

PLAIN = """
#include <stddef.h>
void *HAP_mmap(void *a, int bytes, int prot, int flags, int fd, long offset);
int table[] = {1, 2, 3}, *entry = table + 1;
__attribute__((visibility("default"))) int npurt_skel_handle_invoke(int n)
{
    return HAP_mmap(NULL, n, 1, 0, *entry, 0) != NULL;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that compiles C into a skel and returns its bytes."""
    folder = tmp_path_factory.mktemp("skels")

    def compile_text(text, arch="v68"):
        (folder / "skel.c").write_text(text)
        return build.compile_skel([folder / "skel.c"], arch, folder / "skel.so").read_bytes()

    return compile_text


@pytest.fixture(scope="module")
def plain(compiled):
    """Return a small skel without errors."""
    return compiled(PLAIN)


def errors(data, **asked):
    """Return the errors for which a DSP would refuse *data*, as one text."""
    return "\n".join(f.what for f in verify(data, **asked) if f.level == "error")


def warnings(data, **asked):
    return "\n".join(f.what for f in verify(data, **asked) if f.level == "warning")


def patched(data, tag, value, new_tag=None):
    """Return *data* with another value, or tag, in its dynamic segment."""
    segment = next(s for s in elf.read(data).segments if s.kind == elf.SegmentType.DYNAMIC)
    for at in range(segment.offset, segment.offset + segment.file_bytes, 8):
        have, old = struct.unpack_from("<iI", data, at)
        if have == tag:
            word = struct.pack("<iI", tag if new_tag is None else new_tag, value(old))
            return data[:at] + word + data[at + 8 :]
    raise AssertionError(f"there is no entry {tag}")


def with_relocation(data, *, offset=None, symbol=None):
    """Return *data* with another place or symbol in its first relocation."""
    segment = next(s for s in elf.read(data).segments if s.kind == elf.SegmentType.DYNAMIC)
    entries = data[segment.offset : segment.offset + segment.file_bytes // 8 * 8]
    at = dict(struct.iter_unpack("<iI", entries))[elf.Tag.RELA]  # the headers are at address 0
    place, info, _ = struct.unpack_from("<IIi", data, at)
    info = info if symbol is None else symbol << 8 | info & 0xFF
    word = struct.pack("<II", place if offset is None else offset, info)
    return data[:at] + word + data[at + 8 :]


# --- reading -------------------------------------------------------------------------------------


def test_a_skel_of_the_sdk_is_read_as_readelf_reads_it():
    """The literals are the output of binutils' readelf 2.40 -h -l -d."""
    skel = elf.read(FOREIGN.read_bytes())

    assert (skel.arch, skel.soname, skel.signed) == (68, "libcalculator_skel.so", True)
    assert skel.needed == ("libc.so", "libgcc.so")
    assert [
        (s.kind, s.offset, s.address, s.memory_bytes, str(s.access)) for s in skel.segments
    ] == [
        (0, 0, 0, 0, "-"),
        (0, 0x1000, 0x4000, 0x2000, "-"),
        (1, 0x3000, 0, 0x23E4, "RX"),
        (1, 0x6000, 0x3000, 0x2B4, "RW"),
        (2, 0x6000, 0x3000, 0xB0, "RW"),
        (4, 0x30B4, 0xB4, 0x7C, "R"),
    ]
    assert sum(skel.relocations.values()) == (348 + 180) // 12
    assert skel.relocations["JMP_SLOT"] == 180 // 12
    assert "calculator_skel_handle_invoke" in skel.exports
    assert skel.imports["__wrap_malloc"] is False
    assert skel.imports["HAP_debug_v2"] is True


def test_a_skel_says_what_its_source_says(compiled):
    call = "0) != NULL && weak_one && weak_one()"
    text = f"int weak_one(void) __attribute__((weak));\n{PLAIN.replace('0) != NULL', call)}"

    skel = elf.read(compiled(text, "v73"))

    assert (skel.arch, skel.soname, skel.needed) == (73, "skel.so", ())
    assert skel.exports == ("npurt_skel_handle_invoke",)
    assert skel.imports == {"HAP_mmap": False, "weak_one": True}
    assert not skel.signed


@given(st.binary(max_size=400))
def test_random_bytes_are_damaged_and_never_a_crash(data):
    for prefix in (b"", b"\x7fELF", b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\xa4\x00"):
        with pytest.raises(LayoutError):
            elf.read(prefix + data)


@given(data=st.data())
def test_a_damaged_skel_is_read_or_refused_and_never_a_crash(plain, data):
    """The test overwrites bytes at the beginning of the file and of its tables."""
    damaged = bytearray(data.draw(st.sampled_from([plain, FOREIGN.read_bytes()])))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, 0x2000) | st.integers(0, len(damaged) - 1))
        word = data.draw(st.binary(min_size=1, max_size=4))
        damaged[at : at + len(word)] = word

    for finding in verify(bytes(damaged)):
        assert finding.what
        assert finding.remedy


# --- judging -------------------------------------------------------------------------------------


def test_a_plain_skel_has_nothing_wrong(plain):
    assert verify(plain, arch=68, entry="npurt_skel_handle_invoke") == []


def test_a_skel_of_the_sdk_has_no_error():
    data = FOREIGN.read_bytes()

    assert errors(data) == ""
    assert "libc.so and libgcc.so" in warnings(data)


@pytest.mark.parametrize(("arch", "on", "fits"), [("v68", 68, 1), ("v68", 73, 1), ("v73", 68, 0)])
def test_a_skel_for_a_newer_dsp_is_named(compiled, arch, on, fits):
    said = errors(compiled(PLAIN, arch), arch=on)

    assert said == "" if fits else f"for {arch}" in said
    assert fits or f"a v{on}" in said


def test_another_or_no_entry_is_named(plain, compiled):
    other = compiled(PLAIN.replace("npurt_skel_handle_invoke", "start"))

    assert "exports npurt_skel_handle_invoke, not npurt_skel_handle_invok " in errors(
        plain, entry="npurt_skel_handle_invok"
    )
    assert "exports start, not npurt_skel_invoke" in errors(other, entry="npurt_skel_invoke")
    assert errors(other, entry="start") == warnings(other, entry="start") == ""
    assert "exports start, not NAME_skel_handle_invoke" in errors(other, name="libx_skel.so")


def test_a_file_without_an_entry_may_be_a_library_that_a_skel_needs(compiled):
    other = compiled(PLAIN.replace("npurt_skel_handle_invoke", "start"))

    assert errors(other, name="libother.so") == ""
    assert "as a skel, the file would not open: it exports start" in warnings(other)


def test_an_import_that_the_domain_may_not_have_is_named(compiled):
    """A missing required import is an error, an optional one a warning."""
    strong = compiled(PLAIN.replace("HAP_mmap", "HAP_mmapp"))
    weak = compiled(f"#pragma weak HAP_mmapp\n{PLAIN.replace('HAP_mmap', 'HAP_mmapp')}")

    assert "HAP_mmapp" in errors(strong)
    assert errors(weak) == ""
    assert "HAP_mmapp" in warnings(weak)


def test_a_library_that_is_needed_is_named_and_no_error(plain):
    """The DSP's own files include libraries, and the DSP looks beside the skel too."""
    needing = patched(plain, elf.Tag.SONAME, lambda name: name, elf.Tag.NEEDED)

    assert errors(needing) == ""
    assert "needs skel.so from the DSP's own files" in warnings(needing)


@pytest.mark.parametrize("abi", [None, 2, 4])
def test_another_version_of_the_abi_is_a_warning(plain, abi):
    """All 263 libraries that Debian packages for a CDSP have 3."""
    if abi is None:
        data = patched(plain, elf.Tag.HEXAGON_VER, lambda _: 0, elf.Tag.NEEDED + 0x6FFF_FF00)
    else:
        data = patched(plain, elf.Tag.HEXAGON_VER, lambda _: abi)

    assert errors(data) == ""
    assert ("no DT_HEXAGON_VER" if abi is None else f"DT_HEXAGON_VER {abi};") in warnings(data)


@given(data=st.data())
def test_a_file_that_was_cut_is_named(plain, data):
    """The file is cut anywhere before the end of the loaded data; only section names follow."""
    end = max(s.offset + s.file_bytes for s in elf.read(plain).segments)
    cut = plain[: data.draw(st.integers(4, end - 1))]

    assert f"the file ends at byte {len(cut)}" in errors(cut)


def test_other_files_are_named(tmp_path):
    source = tmp_path / "main.c"
    source.write_text("void _start(void);\nvoid _start(void) {}")
    program = build.compile_program([source], tmp_path / "program").read_bytes()
    library = build.build_library("aarch64", tmp_path / "lib.so", sources=[source]).read_bytes()

    assert "begins with 23 21 2f 62" in errors(b"#!/bin/sh")
    assert "begins with nothing" in errors(b"")
    assert "not a shared object" in errors(program)
    assert "not for a 32-bit" in errors(library)
    assert "machine 40" in errors(program[:18] + b"\x28\x00" + program[20:])


def test_a_wrong_shape_is_named(plain):
    """The test changes flags and alignment of the first segment (at byte 52), and the tables."""
    flags, align = 52 + 24, 52 + 28
    writable = plain[:flags] + bytes([7]) + plain[flags + 1 :]
    aligned = plain[:align] + struct.pack("<I", 1 << 16) + plain[align + 4 :]
    stack = plain[:52] + struct.pack("<I", 0x6474E551) + plain[56:]
    no_hash = patched(plain, elf.Tag.HASH, lambda at: at, 0x6FFFFEF5)

    assert "written to and executed" in errors(writable)
    assert "aligned to 65536 bytes" in warnings(aligned)
    assert "0x6474e551" in warnings(stack) or "in no segment" in errors(stack)
    assert "no System V hash table" in errors(no_hash)


def test_code_that_must_be_written_to_is_named(plain):
    writing = patched(plain, elf.Tag.SONAME, lambda _: 0, elf.Tag.TEXTREL)

    assert "the loader would have to write to the code" in errors(writing)


# --- the command ---------------------------------------------------------------------------------


def test_verify_says_whether_it_should_load(plain, tmp_path, capsys):
    skel = tmp_path / "skel.so"
    skel.write_bytes(plain)

    assert main(["skel", "verify", str(skel)]) == 0
    assert capsys.readouterr().out == f"{skel}: should load\n"
    assert main(["skel", "verify", str(skel), "--arch", "v65"]) == 1
    assert "remedy: use the skel for v65" in capsys.readouterr().out
    assert main(["skel", "verify", str(skel), "--entry", "other", "--json"]) == 1
    held = json.loads(capsys.readouterr().out)
    assert (held["file"], held["ok"], len(held["findings"])) == (str(skel), False, 1)


def test_info_tells_what_a_file_is_made_of(capsys):
    assert main(["skel", "info", str(FOREIGN), "--json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert main(["skel", "info", str(FOREIGN)]) == 0
    text = capsys.readouterr().out

    assert (held["arch"], held["signed"], held["needed"]) == ("v68", True, ["libc.so", "libgcc.so"])
    for value in held.values():
        for item in value if isinstance(value, list) else [value]:
            assert str(item) in text


def test_a_file_that_is_not_there_or_no_skel_is_an_error_with_a_remedy(tmp_path, capsys):
    (tmp_path / "text").write_text("text")

    for name in ("none", "text"):
        assert main(["skel", "info", str(tmp_path / name)]) == 1
        assert "remedy:" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["v60", "v66", "v69", "v85"])
def test_every_version_of_a_board_is_known(plain, version):
    """The shells that Debian packages are for v66 to v85."""
    flags = 36
    data = plain[:flags] + struct.pack("<I", int(version[1:], 16)) + plain[flags + 4 :]

    assert "is unknown" not in warnings(data)
    assert verify(data, arch=int(version[1:])) == []


def test_an_import_is_judged_by_the_shell_that_is_named(plain, tmp_path, capsys):
    skel, shell = tmp_path / "libnpurt_skel.so", tmp_path / "fastrpc_shell_unsigned_3"
    skel.write_bytes(plain)
    for exports, arch, code, said in (
        (("HAP_mmap", "HAP_munmap"), 68, 0, "should load"),
        (("HAP_munmap",), 68, 1, "HAP_mmap, which the shell lacks (0x80000406)"),
        (("HAP_mmap",), 66, 1, "this DSP is a v66"),
    ):
        shell.write_bytes(shared_object(exports=exports, arch=arch))

        assert main(["skel", "verify", str(skel), "--shell", str(shell)]) == code
        assert said in capsys.readouterr().out


@pytest.mark.parametrize("version", ["v6x", "v99", "v59", "168"])
def test_a_version_that_is_none_is_a_usage_error(capsys, version):
    with pytest.raises(SystemExit) as caught:
        main(["skel", "verify", "x", "--arch", version])

    assert caught.value.code == 2
    assert f"{version!r} is not a version" in capsys.readouterr().err


@pytest.mark.parametrize("offset", [0x7FFF_FFFC, 0xFFFF_FFFE, 0x10_0000])
def test_a_relocation_of_what_is_not_loaded_is_damage(plain, offset):
    assert f"a relocation changes {offset:#x}" in errors(with_relocation(plain, offset=offset))


def test_a_relocation_by_a_symbol_that_is_none_is_damage(plain):
    assert "a relocation refers to symbol 65535" in errors(with_relocation(plain, symbol=0xFFFF))


def test_relocations_of_no_known_place_are_damage(plain):
    data = patched(plain, elf.Tag.RELA, lambda value: value, new_tag=0x6FFF_FFF9)

    assert "of relocations without an address" in errors(data)


def test_a_symbol_that_is_not_loaded_is_damage(plain):
    segment = next(s for s in elf.read(plain).segments if s.kind == elf.SegmentType.DYNAMIC)
    entries = plain[segment.offset : segment.offset + segment.file_bytes // 8 * 8]
    at = dict(struct.iter_unpack("<iI", entries))[elf.Tag.SYMTAB] + 16 * symbol_here(plain) + 4
    data = plain[:at] + struct.pack("<I", 0x10_0000) + plain[at + 4 :]

    assert "a symbol is at 0x100000" in errors(data)


def symbol_here(data):
    """Return the index of a symbol that *data* defines."""
    segment = next(s for s in elf.read(data).segments if s.kind == elf.SegmentType.DYNAMIC)
    entries = data[segment.offset : segment.offset + segment.file_bytes // 8 * 8]
    values = dict(struct.iter_unpack("<iI", entries))
    (count,) = struct.unpack_from("<I", data, values[elf.Tag.HASH] + 4)
    places = (
        struct.unpack_from("<H", data, values[elf.Tag.SYMTAB] + 16 * i + 14) for i in range(count)
    )
    return next(i for i, (section,) in enumerate(places) if section)


def test_a_segment_beyond_all_memory_is_damage(plain):
    (table,) = struct.unpack_from("<I", plain, 28)
    data = plain[: table + 20] + struct.pack("<I", 0x7000_0000) + plain[table + 24 :]

    assert "segment 0 ends at 0x70000000" in errors(data)


def with_segment(data, kind, field, value):
    """Return *data* with word *field* of the header of its first segment of *kind* changed."""
    table, count = struct.unpack_from("<I", data, 28)[0], struct.unpack_from("<H", data, 44)[0]
    places = [table + 32 * i for i in range(count)]
    at = next(p for p in places if struct.unpack_from("<I", data, p)[0] == kind) + 4 * field
    return data[:at] + struct.pack("<I", value) + data[at + 4 :]


@pytest.mark.parametrize("align", [3, 4097, 0xFFFF])
def test_an_alignment_that_is_no_power_of_two_is_damage(plain, align):
    """The System V ABI allows 0, 1 and powers of two."""
    assert f"aligned to {align} bytes" in errors(
        with_segment(plain, elf.SegmentType.LOAD, 7, align)
    )


def test_a_dynamic_segment_that_is_shorter_in_memory_is_damage(plain):
    assert "bytes in the file, 1 in memory" in errors(
        with_segment(plain, elf.SegmentType.DYNAMIC, 5, 1)
    )


def test_a_dynamic_segment_that_is_longer_than_what_is_loaded_is_damage(plain):
    assert "dynamic segment" in errors(with_segment(plain, elf.SegmentType.DYNAMIC, 5, 0x10_0000))


def test_names_without_an_end_are_damage(plain):
    assert "does not end" in errors(patched(plain, elf.Tag.STRSZ, lambda size: size - 1))


def test_a_relocation_of_code_is_damage(plain):
    assert "a relocation changes 0x1000, which is not" in errors(
        with_relocation(plain, offset=4096)
    )


def test_a_table_of_no_relocations_that_is_nowhere_is_damage(plain):
    """An empty table also has an address, which loaders read."""
    data = patched(plain, elf.Tag.RELASZ, lambda _: 0)
    data = patched(data, elf.Tag.RELA, lambda _: 0x2000_0000)

    assert "a table of relocations (0 bytes at 0x20000000)" in errors(data)


@pytest.mark.parametrize("buckets", [0, 0x0001_0000, 0xFFFF_FFFF])
def test_a_hash_table_without_buckets_or_with_too_many_is_damage(plain, buckets):
    segment = next(s for s in elf.read(plain).segments if s.kind == elf.SegmentType.DYNAMIC)
    entries = plain[segment.offset : segment.offset + segment.file_bytes // 8 * 8]
    at = dict(struct.iter_unpack("<iI", entries))[elf.Tag.HASH]
    data = plain[:at] + struct.pack("<I", buckets) + plain[at + 4 :]

    assert "hash table" in errors(data)
