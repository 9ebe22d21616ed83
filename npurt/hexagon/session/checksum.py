"""Add the checksum section to code for the DSP, and check it.

Some DSPs in cars (SA8797P, SA8650P) refuse a file without this section: "section header for CRC
segment not found", 0x80000406.  It has a checksum and no signature, so it proves nothing about the
origin of a file.  A loader that does not know the section reads only segments.

The section is the last one, of type 0xD3574956, without name, flags, address and alignment.  Its 16
bytes end the file: "SWIV", the CRC-32 of all LOAD segments in their order, each with zeros up to
its size in memory, and two words.  The ELF header is in a segment, so a new section changes the
checksum.
Sources: the section headers of the 28 libraries of an SA8797P in Debian's hexagon-dsp-binaries
0~20261019-1; hexagon-mlir #87.  [?] The meaning of the two words is unknown: this module writes
zeros, which public notes on files for an SA8650P report, and accepts any words.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from npurt.errors import LayoutError

TYPE = 0xD3574956  # of the section: the letters SWIV, plus 0x80000000
MAGIC = b"SWIV"
MACHINE = 164  # EM_HEXAGON
MAX_MEMORY = 1 << 28  # limit for the size of all segments in memory
_LOAD, _SIGNATURE = 1, 0  # kinds of segments

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SEGMENT = struct.Struct("<8I")
_SECTION = struct.Struct("<10I")
_CONTENT = struct.Struct("<4sIII")
_RESERVED = 0xFF00  # SHN_LORESERVE: the first number that counts no sections
_ZEROS = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum that a file's section states, and the checksum of its segments."""

    stated: int
    computed: int


class _Header(NamedTuple):
    """The fields of an ELF header that locate segments and sections."""

    segments: int
    sections: int
    segment_size: int
    segment_count: int
    section_size: int
    section_count: int


def has_section(data: Any) -> bool:
    """Return whether *data*, bytes or a mapped file, has a checksum section; never raises."""
    try:
        return _section(data, _header(data)) is not None
    except LayoutError:
        return False


def find(data: bytes) -> Checksum | None:
    """Return the checksums of a file for the DSP; None if the file has no checksum section.

    Raises:
        LayoutError: The file or its section is damaged.
    """
    head = _header(data)
    at = _section(data, head)
    if at is None:
        return None
    return Checksum(_CONTENT.unpack_from(data, at)[1], _crc(data, head))


def with_checksum(data: bytes) -> bytes:
    """Return the file *data* with a correct checksum section, the old section if it has one.

    Raises:
        LayoutError: *data* is no file for the DSP, is damaged, or has a signature, which a change
            would break.
    """
    head = _header(data)
    if any(kind == _SIGNATURE and nbytes for kind, _, _, nbytes in _segments(data, head)):
        raise LayoutError(
            "the file has a signature, which a checksum section would break",
            remedy="use the file as it is, or add the section before the file is signed",
        )
    at = _section(data, head)
    if at is None:
        data = _extended(data, head)
        at = len(data) - _CONTENT.size
    crc = struct.pack("<I", _crc(data, _header(data)))
    return data[: at + len(MAGIC)] + crc + data[at + len(MAGIC) + len(crc) :]


def _extended(data: bytes, head: _Header) -> bytes:
    """Return *data* with a new table of sections and a checksum of 0 at its end."""
    if head.section_count + 2 > _RESERVED:
        _refuse(f"it has {head.section_count} sections: there is no number for another one")
    table = _table(data, head)
    if table is None:
        _refuse(f"its table of {head.section_count} sections is not in the file")
    table = table or bytes(_SECTION.size)  # the first section is always empty
    body = data + bytes(-len(data) % 4)
    content = len(body) + len(table) + _SECTION.size
    table += _SECTION.pack(0, TYPE, 0, 0, content, _CONTENT.size, 0, 0, 0, 0)
    fields = list(_HEADER.unpack_from(data))
    fields[6], fields[11], fields[12] = len(body), _SECTION.size, len(table) // _SECTION.size
    return _HEADER.pack(*fields) + body[_HEADER.size :] + table + _CONTENT.pack(MAGIC, 0, 0, 0)


def _refuse(what: str) -> NoReturn:
    raise LayoutError(what, remedy="copy the file again, or build it again")


def _header(data: Any) -> _Header:
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x01\x01":
        _refuse("this is not a 32-bit little-endian ELF file")
    _, _, machine, _, _, segments, sections, _, _, *sizes, _ = _HEADER.unpack_from(data)
    if machine != MACHINE:
        _refuse(f"the file is for machine {machine}, not for the Hexagon ({MACHINE})")
    return _Header(segments, sections, *sizes)


def _segments(data: Any, head: _Header) -> list[tuple[int, int, int, int]]:
    """Return (kind, offset, bytes in the file, bytes in memory) of every segment."""
    end = head.segments + head.segment_count * _SEGMENT.size
    if (head.segment_count and head.segment_size != _SEGMENT.size) or end > len(data):
        _refuse(f"its {head.segment_count} program headers are not in the file")
    rows = _SEGMENT.iter_unpack(bytes(data[head.segments : end]))
    return [(row[0], row[1], row[4], row[5]) for row in rows]


def _table(data: Any, head: _Header) -> bytes | None:
    """Return the table of sections, b"" if there are none; None if it is not in the file."""
    end = head.sections + head.section_count * _SECTION.size
    if head.section_count and (head.section_size != _SECTION.size or end > len(data)):
        return None
    return bytes(data[head.sections : end]) if head.section_count else b""


def _section(data: Any, head: _Header) -> int | None:
    """Return where the file has the content of its checksum section; None without a section."""
    rows = list(_SECTION.iter_unpack(_table(data, head) or b""))
    found: list[tuple[int, int]] = [(row[4], row[5]) for row in rows if row[1] == TYPE]
    if not found:
        if bytes(data[-_CONTENT.size :][: len(MAGIC)]) == MAGIC:
            _refuse("the file ends with a checksum, but its table of sections does not name it")
        return None
    at, nbytes = found[-1]
    if nbytes != _CONTENT.size or bytes(data[at : at + len(MAGIC)]) != MAGIC:
        _refuse(f"its checksum section ({nbytes} bytes at {at}) does not begin with SWIV")
    if at + nbytes > len(data):
        _refuse(f"the file ends at byte {len(data)}, in its checksum section at {at}")
    return at


def _crc(data: bytes, head: _Header) -> int:
    """Return the CRC-32 of all LOAD segments as they are in memory, before relocation."""
    loads = [segment[1:] for segment in _segments(data, head) if segment[0] == _LOAD]
    if sum(max(inside, memory) for _, inside, memory in loads) > MAX_MEMORY:
        _refuse(f"its segments need more than {MAX_MEMORY >> 20} MiB of memory")
    crc = 0
    for offset, inside, memory in loads:
        if offset + inside > len(data):
            _refuse(f"the file ends at byte {len(data)}, a segment at {offset + inside}")
        crc = zlib.crc32(data[offset : offset + inside], crc)
        for start in range(inside, memory, len(_ZEROS)):
            crc = zlib.crc32(_ZEROS[: memory - start], crc)
    return crc
