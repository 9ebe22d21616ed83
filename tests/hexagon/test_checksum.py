"""Test the checksum section: what it covers, that damage is found, and that boards get it."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cli import main
from npurt.doctor.machine import Machine
from npurt.errors import LayoutError
from npurt.hexagon.doctor import elf
from npurt.hexagon.doctor.loadable import verify
from npurt.hexagon.session import checksum, installed, skel
from tests.hexagon.dsp import simulated
from tests.hexagon.objects import shared_object
from tests.hexagon.test_loadable import FOREIGN

SKEL = skel.choose(68).read_bytes()


def errors(data):
    return "\n".join(f.what for f in verify(data) if f.level == "error")


# --- the section ---------------------------------------------------------------------------------


def test_the_section_has_the_layout_of_shipped_files():
    """The section is the last one, and its 16 bytes end the file."""
    data = checksum.with_checksum(SKEL)
    sections, count = struct.unpack_from("<I", data, 32)[0], struct.unpack_from("<H", data, 48)[0]
    last = struct.unpack_from("<10I", data, sections + 40 * (count - 1))
    magic, crc, *words = struct.unpack("<4sIII", data[-16:])

    assert last == (0, 0xD3574956, 0, 0, len(data) - 16, 16, 0, 0, 0, 0)
    assert (magic, words) == (b"SWIV", [0, 0])
    loads = [s for s in elf.read(data).segments if s.kind == elf.SegmentType.LOAD]
    image = b"".join(
        data[s.offset : s.offset + s.file_bytes].ljust(s.memory_bytes, b"\0") for s in loads
    )
    assert crc == zlib.crc32(image)


def test_the_other_sections_stay(tmp_path):
    count = struct.unpack_from("<H", SKEL, 48)[0]
    data = checksum.with_checksum(SKEL)
    old, new = struct.unpack_from("<I", SKEL, 32)[0], struct.unpack_from("<I", data, 32)[0]

    assert data[new : new + 40 * count] == SKEL[old : old + 40 * count]
    assert struct.unpack_from("<H", data, 50) == struct.unpack_from("<H", SKEL, 50)
    assert elf.read(data).segments == elf.read(SKEL).segments


FORMS = st.fixed_dictionaries(
    {"loads": st.sampled_from([2, 4]), "tls": st.booleans(), "arch": st.sampled_from([68, 73, 81])}
)


@given(FORMS, st.binary(max_size=7))
def test_a_file_with_a_checksum_has_no_finding_about_it(form, end):
    data = checksum.with_checksum(shared_object(**form) + end)

    assert checksum.has_section(data)
    assert checksum.find(data).stated == checksum.find(data).computed
    assert errors(data) == ""
    assert checksum.with_checksum(data) == data


@given(st.data())
def test_any_changed_byte_of_a_segment_is_found(data):
    """The ELF header, which locates the section, is in a segment too."""
    file = bytearray(
        checksum.with_checksum(shared_object(loads=data.draw(st.sampled_from([2, 4]))))
    )
    loads = [s for s in elf.read(bytes(file)).segments if s.kind == elf.SegmentType.LOAD]
    segment = data.draw(st.sampled_from(loads))
    at = segment.offset + data.draw(
        st.integers(0, segment.file_bytes - 1) | st.integers(0, min(255, segment.file_bytes - 1))
    )
    file[at] ^= data.draw(st.integers(1, 255))

    assert errors(bytes(file)) != ""


@pytest.mark.parametrize("at", range(52))
def test_a_changed_byte_of_the_header_is_found(at):
    for change in (1, 0x80, 0xFF):
        data = bytearray(checksum.with_checksum(SKEL))
        data[at] ^= change

        assert errors(bytes(data)) != ""


def test_a_wrong_checksum_is_an_error_with_both_values():
    data = bytearray(checksum.with_checksum(SKEL))
    stated = checksum.find(bytes(data)).stated
    data[0x6000] ^= 1
    found = checksum.find(bytes(data))

    assert found.stated == stated != found.computed
    assert f"says {stated:#010x}, but its segments have {found.computed:#010x}" in errors(
        bytes(data)
    )


def test_bytes_in_memory_alone_count_as_zeros():
    table = struct.unpack_from("<I", SKEL, 28)[0] + 32  # the second segment
    longer = bytearray(SKEL)
    struct.pack_into(
        "<I", longer, table + 20, struct.unpack_from("<I", SKEL, table + 20)[0] + 70000
    )

    data = checksum.with_checksum(bytes(longer))

    assert data[-12:-8] != checksum.with_checksum(SKEL)[-12:-8]
    assert checksum.find(data).stated == checksum.find(data).computed


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_and_never_a_crash(data):
    for prefix in (b"", b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\xa4\x00"):
        with pytest.raises(LayoutError):
            checksum.with_checksum(prefix + data)
        assert not checksum.has_section(prefix + data)


@given(st.data())
def test_a_damaged_file_is_judged_or_refused_and_never_a_crash(data):
    damaged = bytearray(checksum.with_checksum(shared_object()))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, 300) | st.integers(len(damaged) - 120, len(damaged) - 1))
        word = data.draw(st.binary(min_size=1, max_size=4))
        damaged[at : at + len(word)] = word
    with contextlib.suppress(LayoutError):
        again = checksum.with_checksum(bytes(damaged))
        assert checksum.find(again).stated == checksum.find(again).computed


def test_segments_of_gigabytes_are_refused_without_a_wait():
    huge = bytearray(SKEL)
    table = struct.unpack_from("<I", SKEL, 28)[0]
    struct.pack_into("<I", huge, table + 20, 0x3000_0000)

    with pytest.raises(LayoutError, match="more than 256 MiB"):
        checksum.with_checksum(bytes(huge))


def test_a_signed_file_is_left_alone():
    with pytest.raises(LayoutError, match="has a signature"):
        checksum.with_checksum(FOREIGN.read_bytes())


# --- the command ---------------------------------------------------------------------------------


def test_the_command_adds_the_section_and_verifies_the_result(tmp_path, capsys):
    old, new = tmp_path / "libnpurt_skel.so", tmp_path / "new_skel.so"
    old.write_bytes(SKEL)

    assert main(["skel", "checksum", str(old), "-o", str(new)]) == 0
    assert capsys.readouterr().out == f"{new}: should load\n"
    assert main(["skel", "checksum", str(old), "-o", str(old)]) == 0
    assert old.read_bytes() == new.read_bytes() == checksum.with_checksum(SKEL)
    capsys.readouterr()
    assert main(["skel", "info", str(new)]) == 0
    assert f"{checksum.find(new.read_bytes()).stated:#010x}, right" in capsys.readouterr().out


def test_the_command_says_what_it_needs(tmp_path, capsys):
    file = tmp_path / "skel.so"
    file.write_bytes(SKEL)

    assert main(["skel", "checksum", str(file)]) == 2
    assert "-o FILE" in capsys.readouterr().err
    assert main(["skel", "checksum", str(file), "-o", str(tmp_path / "no/skel.so")]) == 1
    assert "cannot write" in capsys.readouterr().err
    assert main(["skel", "checksum", str(FOREIGN), "-o", str(file)]) == 1
    assert "has a signature" in capsys.readouterr().err


# --- on a board ----------------------------------------------------------------------------------


def board(root, *, swiv):
    """Return a system with a shell and two libraries, with or without a checksum section."""
    folder = root / "usr/lib/dsp/cdsp"
    folder.mkdir(parents=True)
    for name in ("fastrpc_shell_unsigned_3", "libcrm_test_skel.so", "version.so"):
        (folder / name).write_bytes(shared_object(swiv=swiv and name != "version.so"))
    return Machine(root, readers=installed.READERS, environment=lambda name: "")


def test_code_for_a_board_whose_libraries_have_a_checksum_gets_one(tmp_path):
    path = skel.choose(68)

    assert skel.code_of(path, board(tmp_path / "plain", swiv=False)) == SKEL
    assert skel.code_of(path, board(tmp_path / "swiv", swiv=True)) == checksum.with_checksum(SKEL)


def test_signed_code_stays_as_it_is(tmp_path):
    assert skel.code_of(FOREIGN, board(tmp_path, swiv=True)) == FOREIGN.read_bytes()


def test_a_dsp_that_requires_the_section_loads_the_skel_with_it(monkeypatch):
    """The simulator refuses a file without the section, as such a DSP does."""
    monkeypatch.setattr(skel, "_checks_code", lambda: True)
    with simulated("checksum=1") as session:
        assert session.call("echo", 1)

    monkeypatch.setattr(skel, "_checks_code", lambda: False)
    with pytest.raises(Exception, match="0x80000406"), simulated("checksum=1"):
        pass
