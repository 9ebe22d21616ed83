"""Read a shared object for the DSP from its segments, as the DSP's loader does.

`read` refuses damaged files only; `loadable.verify` decides whether a DSP can load a file.
`exports` reads only the names that a file offers, as those of a shell.
Sources: System V gABI 4.1, chapters 4 and 5; Hexagon ABI: LLVM, include/llvm/BinaryFormat/ELF.h and
ELFRelocs/Hexagon.def.
"""

import struct
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NoReturn

from npurt.errors import LayoutError

MACHINE = 164  # EM_HEXAGON
SHARED_OBJECT = 3  # ET_DYN
ARCH_MASK = 0x3FF  # of e_flags; bit 15 marks the small cores (v67t, v71t)

MAX_BYTES = 1 << 30  # limit for the size of a library in memory

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SEGMENT = struct.Struct("<8I")
_DYNAMIC = struct.Struct("<iI")
_SYMBOL = struct.Struct("<IIIBBH")
_RELOCATION = struct.Struct("<IIi")
_HASH = struct.Struct("<II")

_RELOCATIONS = {
    6: "32",
    32: "COPY",
    33: "GLOB_DAT",
    34: "JMP_SLOT",
    35: "RELATIVE",
    44: "DTPMOD_32",
    47: "DTPREL_32",  # of thread-local variables
}
_WEAK, _LOCAL = 2, 0  # bindings
_THREAD_LOCAL = 6  # STT_TLS: the value is an offset in the segment TLS, not an address
_RESERVED_SECTIONS = 0xFF00  # SHN_LORESERVE: this and higher indices, as SHN_ABS, are no sections
_VISIBLE = (0, 3)  # visibilities: default, protected
_MAX_SYMBOLS = 1 << 16


class SegmentType(IntEnum):
    """Kinds of segments."""

    NULL = 0  # in signed files: the signature
    LOAD = 1
    DYNAMIC = 2
    NOTE = 4
    TLS = 7  # initial values of thread-local variables
    GNU_RELRO = 0x6474E552  # data that are read-only after relocation


class Access(IntFlag):
    """The access rights of a segment."""

    X = 1
    W = 2
    R = 4

    def __str__(self) -> str:
        """Return the letters of the rights, such as "RX"."""
        return "".join(str(one.name) for one in sorted(self, reverse=True)) or "-"


class Tag(IntEnum):
    """Entries of the dynamic segment."""

    NULL = 0
    NEEDED = 1
    PLTRELSZ = 2
    HASH = 4
    STRTAB = 5
    SYMTAB = 6
    RELA = 7
    RELASZ = 8
    STRSZ = 10
    SONAME = 14
    TEXTREL = 22
    JMPREL = 23
    HEXAGON_VER = 0x70000001  # version of the ABI for dynamic linking


@dataclass(frozen=True, slots=True)
class ProgramHeader:
    """A program header; sizes and addresses in bytes."""

    kind: int
    offset: int
    address: int
    file_bytes: int
    memory_bytes: int
    access: Access
    align: int


@dataclass(frozen=True, slots=True)
class SharedObject:
    """The contents of a shared object for the DSP.

    Attributes:
        arch: The version of the DSP that the object was compiled for: 68 for v68.
        segments: The segments in the order of the file.
        soname: The object's own name, or None.
        needed: Libraries that must be loaded with the object.
        exports: Symbols that other objects can use, sorted.
        imports: Undefined symbols: name -> True if the symbol is weak.
        relocations: Number of relocations by kind; the kinds are named without "R_HEX_".
        has_hash: Whether the object has a System V hash table, in which the loader finds symbols.
        text_relocations: Whether the loader must write to the code.
        abi: The entry DT_HEXAGON_VER, or None.
    """

    arch: int
    segments: tuple[ProgramHeader, ...]
    soname: str | None
    needed: tuple[str, ...]
    exports: tuple[str, ...]
    imports: dict[str, bool]
    relocations: dict[str, int]
    has_hash: bool
    text_relocations: bool
    abi: int | None

    @property
    def signed(self) -> bool:
        """Whether the file has a signature, in a segment of kind 0."""
        return any(s.kind == SegmentType.NULL and s.memory_bytes for s in self.segments)


def read(data: bytes) -> SharedObject:
    """Read a file.

    Raises:
        LayoutError: *data* is not a shared object for the Hexagon, or is damaged.
    """
    arch, image = _opened(data)
    entries = image.dynamic()
    symbols = image.symbols(entries)
    for symbol in symbols:
        image.check_symbol(symbol)
    return SharedObject(
        arch=arch,
        segments=image.segments,
        soname=next((image.text(entries, v) for t, v in entries if t == Tag.SONAME), None),
        needed=tuple(image.text(entries, v) for t, v in entries if t == Tag.NEEDED),
        exports=_exported(symbols),
        imports={s.name: s.weak for s in symbols if s.section == 0 and s.name},
        relocations=image.relocations(entries, symbols),
        has_hash=any(t == Tag.HASH for t, _ in entries),
        text_relocations=any(t == Tag.TEXTREL for t, _ in entries),
        abi=dict(entries).get(Tag.HEXAGON_VER),
    )


def exports(data: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the version and the exported names of a file; read nothing else of it.

    Raises:
        LayoutError: *data* is not a shared object for the Hexagon, or its tables are damaged.
    """
    arch, image = _opened(data)
    return arch, _exported(image.symbols(image.dynamic()))


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    value: int
    kind: int
    weak: bool
    section: int
    exported: bool

    @property
    def refers(self) -> bool:
        """True if this object defines the symbol, or the symbol has a name to look up."""
        return self.section != 0 or self.name != ""


def _exported(symbols: "list[_Symbol]") -> tuple[str, ...]:
    return tuple(sorted(s.name for s in symbols if s.exported))


def _opened(data: bytes) -> "tuple[int, _Image]":
    head = _head(data)
    segments = tuple(_segments(data, table=head[5], size=head[9], count=head[10]))
    return _decimal(head[7] & ARCH_MASK), _Image(data, segments)


def _refuse(what: str) -> NoReturn:
    raise LayoutError(what, remedy="copy the file again, or build it again")


def _unpack(layout: struct.Struct, data: bytes, at: int, what: str) -> tuple[int, ...]:
    if not 0 <= at <= len(data) - layout.size:
        _refuse(f"the file ends at byte {len(data)}, before the end of {what} at {at}")
    return layout.unpack_from(data, at)


def _decimal(version: int) -> int:
    """Return 68 for 0x68: the hex digits read as decimal digits."""
    text = f"{version:x}"
    return int(text) if text.isdecimal() else _refuse(f"its Hexagon version is {version:#x}")


def _head(data: bytes) -> tuple[int, ...]:
    if data[:4] != b"\x7fELF":
        _refuse(f"this is not an ELF file: it begins with {data[:4].hex(' ') or 'nothing'}")
    head = _unpack(_HEADER, data, 0, "its header")
    if data[4:6] != b"\x01\x01":
        _refuse("the file is not for a 32-bit little-endian machine such as the Hexagon")
    _, kind, machine, *_ = head
    if machine != MACHINE:
        _refuse(f"the file is for machine {machine}, not for the Hexagon ({MACHINE})")
    if kind != SHARED_OBJECT:
        _refuse(f"the file is not a shared object: its ELF type is {kind}, not {SHARED_OBJECT}")
    return head


def _segments(data: bytes, table: int, size: int, count: int) -> list[ProgramHeader]:
    if size != _SEGMENT.size:
        _refuse(f"its program headers have {size} bytes, not {_SEGMENT.size}")
    found = []
    for i in range(count):
        header = _unpack(_SEGMENT, data, table + i * size, f"program header {i}")
        kind, offset, address, _, file_bytes, memory_bytes, access, align = header
        segment = ProgramHeader(
            kind, offset, address, file_bytes, memory_bytes, Access(access & 7), align
        )
        if offset + file_bytes > len(data):
            _refuse(f"the file ends at byte {len(data)}, segment {i} at {offset + file_bytes}")
        if address + memory_bytes > MAX_BYTES:
            _refuse(f"segment {i} ends at {address + memory_bytes:#x}, above {MAX_BYTES:#x}")
        if kind == SegmentType.LOAD and align & (align - 1):
            _refuse(f"segment {i} is aligned to {align} bytes, not to a power of two")
        if kind in (SegmentType.LOAD, SegmentType.DYNAMIC) and file_bytes > memory_bytes:
            _refuse(f"segment {i} has {file_bytes} bytes in the file, {memory_bytes} in memory")
        found.append(segment)
    return found


def _name(table: bytes, offset: int) -> str:
    """Return the name at *offset* in a table of names, each of which ends with a zero."""
    end = table.find(b"\0", offset) if offset < len(table) else -1
    if end < 0:
        _refuse(f"a name at {offset} is outside the table of names ({len(table)} bytes)")
    return table[offset:end].decode("ascii", "replace")


class _Image:
    """The bytes of a file, by the addresses to which the loader loads them."""

    def __init__(self, data: bytes, segments: tuple[ProgramHeader, ...]) -> None:
        self._data = data
        self.segments = segments

    def _bytes(self, address: int, nbytes: int, what: str) -> bytes:
        for s in self.segments:
            inside = s.kind == SegmentType.LOAD and s.address <= address
            if inside and address + nbytes <= s.address + s.file_bytes:
                start = s.offset + address - s.address
                return self._data[start : start + nbytes]
        _refuse(f"{what} ({nbytes} bytes at {address:#x}) is in no segment")

    def _loaded(self, address: int, nbytes: int = 0, access: int = 0) -> bool:
        """Return whether a loaded segment contains this range; 0 bytes may lie at its end.

        Args:
            address: The start of the range.
            nbytes: The size of the range.
            access: The access rights that the segment must have.
        """
        loads = (s for s in self.segments if s.kind == SegmentType.LOAD and not access & ~s.access)
        return any(s.address <= address <= s.address + s.memory_bytes - nbytes for s in loads)

    def dynamic(self) -> list[tuple[int, int]]:
        """Return the dynamic entries as (tag, value), up to the entry NULL."""
        for s in self.segments:
            if s.kind == SegmentType.DYNAMIC:
                if not self._loaded(s.address, s.memory_bytes):
                    _refuse(f"the dynamic segment at {s.address:#x} is not loaded as a whole")
                table = self._bytes(s.address, s.file_bytes // 8 * 8, "the dynamic segment")
                entries = list(_DYNAMIC.iter_unpack(table))
                end = next((i for i, (tag, _) in enumerate(entries) if tag == Tag.NULL), None)
                return entries[:end]
        _refuse("the file has no dynamic segment, which locates its symbols")

    def text(self, entries: list[tuple[int, int]], offset: int) -> str:
        """Return the name at *offset* in the table of names."""
        return _name(self._names(entries), offset)

    def _names(self, entries: list[tuple[int, int]]) -> bytes:
        values = dict(entries)
        size = values.get(Tag.STRSZ, 0)
        table = self._bytes(values.get(Tag.STRTAB, 0), size, "the table of names")
        if not table.endswith(b"\0"):
            _refuse("its table of names does not end with a zero")
        return table

    def symbols(self, entries: list[tuple[int, int]]) -> list[_Symbol]:
        """Return all dynamic symbols; the hash table holds their number."""
        values = dict(entries)
        if Tag.HASH not in values or Tag.SYMTAB not in values:
            return []
        at = values[Tag.HASH]
        buckets, count = _HASH.unpack(self._bytes(at, _HASH.size, "the hash table"))
        if buckets == 0 or max(buckets, count) > _MAX_SYMBOLS:
            _refuse(f"its hash table counts {count} symbols in {buckets} buckets")
        self._bytes(at, _HASH.size + 4 * (buckets + count), "the hash table")
        what = f"the table of {count} symbols"
        table = self._bytes(values[Tag.SYMTAB], count * _SYMBOL.size, what)
        names = self._names(entries)
        found = []
        for name, value, _, info, other, section in _SYMBOL.iter_unpack(table):
            binding, visible = info >> 4, other & 3 in _VISIBLE
            exported = section != 0 and binding != _LOCAL and visible
            text = _name(names, name)
            weak = binding == _WEAK
            found.append(_Symbol(text, value, info & 0xF, weak, section, exported))
        return found

    def check_symbol(self, symbol: _Symbol) -> None:
        """Raise if a symbol that the object defines is at an address in no segment."""
        placed = 0 < symbol.section < _RESERVED_SECTIONS and symbol.kind != _THREAD_LOCAL
        if placed and not self._loaded(symbol.value):
            _refuse(f"a symbol is at {symbol.value:#x}, which is in no segment")

    def relocations(self, entries: list[tuple[int, int]], symbols: list[_Symbol]) -> dict[str, int]:
        """Check the relocations; return their number by kind."""
        values = dict(entries)
        kinds: Counter[str] = Counter()
        for at, size in ((Tag.RELA, Tag.RELASZ), (Tag.JMPREL, Tag.PLTRELSZ)):
            nbytes = values.get(size, 0) // _RELOCATION.size * _RELOCATION.size
            if nbytes and at not in values:
                _refuse(f"the file has {nbytes} bytes of relocations without an address")
            what = "a table of relocations"
            if not nbytes and at in values and not self._loaded(values[at]):
                _refuse(f"{what} (0 bytes at {values[at]:#x}) is in no segment")
            table = self._bytes(values[at], nbytes, what) if nbytes else b""
            for place, info, _ in _RELOCATION.iter_unpack(table):
                self._check_relocation(place, info >> 8, symbols)
                if Tag.TEXTREL not in values and not self._loaded(place, 4, Access.W):
                    _refuse(f"a relocation changes {place:#x}, which is not writable")
                kinds[_RELOCATIONS.get(info & 0xFF, str(info & 0xFF))] += 1
        return dict(sorted(kinds.items()))

    def _check_relocation(self, place: int, symbol: int, symbols: list[_Symbol]) -> None:
        """Raise if a relocation changes bytes outside memory or refers to a missing symbol."""
        if place % 4 or not self._loaded(place, 4):
            _refuse(f"a relocation changes {place:#x}, which is in no segment or is misaligned")
        if symbol and symbols and (symbol >= len(symbols) or not symbols[symbol].refers):
            _refuse(f"a relocation refers to symbol {symbol}, which does not exist")
