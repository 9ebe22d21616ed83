"""Read the dependencies and exports of an ELF64 little-endian shared object from its sections.

Source: System V gABI 4.1, chapters 4 and 5; symbol versions: LSB Core 5.0, chapter 10.7.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

DYNAMIC, DYNSYM, VERNEED, VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF  # section types
MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True, slots=True)
class Elf:
    """The names in an ELF file: needed libraries, imported symbols, exported symbols."""

    machine: str
    needed: list[str]  # libraries
    imports: dict[str, str]  # symbol -> required version, "" without one
    exports: list[str]


def read(path: Path) -> Elf:
    """Read the dynamic symbols of the file at *path*."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01"
    (machine,) = struct.unpack_from("<H", data, 18)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    sections = {h[1]: data[h[4] : h[4] + h[5]] for h in headers if h[1] != 8}  # 8: no bytes
    strings = next(headers[h[6]] for h in headers if h[1] == DYNSYM)
    strings_at = strings[4]

    def text(offset: int) -> str:
        start = strings_at + offset
        return data[start : data.index(b"\0", start)].decode()

    needed = [text(v) for tag, v in struct.iter_unpack("<QQ", sections[DYNAMIC]) if tag == 1]
    versions = {i: text(name) for i, name in _versions(sections.get(VERNEED, b""))}
    symbols = list(struct.iter_unpack("<IBBHQQ", sections[DYNSYM]))[1:]
    indices = [i for (i,) in struct.iter_unpack("<H", sections[VERSYM])][1:]
    named = [(text(s[0]), s[3], versions.get(i, "")) for s, i in zip(symbols, indices, strict=True)]
    return Elf(
        machine=MACHINES[machine],
        needed=needed,
        imports={name: version for name, section, version in named if section == 0},
        exports=[name for name, section, _ in named if section != 0],
    )


def _versions(verneed: bytes) -> list[tuple[int, int]]:
    """Return (version index, offset of its name) of every version in a .gnu.version_r section."""
    found, at = [], 0
    while verneed:
        _, count, _, first, step = struct.unpack_from("<HHIII", verneed, at)
        aux = at + first
        for _ in range(count):
            _, _, index, name, following = struct.unpack_from("<IHHII", verneed, aux)
            found.append((index, name))
            aux += following
        if not step:
            break
        at += step
    return found
