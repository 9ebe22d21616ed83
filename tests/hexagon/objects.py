"""Write shared objects for the DSP in the forms of those that vendors ship, from names alone.

No code is in them.  The forms are those of the headers of 263 libraries for a CDSP in Debian's
hexagon-dsp-binaries 0~20261019-1.  Sources of the layout: System V gABI 4.1, chapters 4 and 5;
LLVM, include/llvm/BinaryFormat/ELF.h and ELFRelocs/Hexagon.def.
"""

import struct

from npurt.hexagon.session import checksum

PAGE = 4096
LOAD, DYNAMIC, NOTE, TLS, RELRO = 1, 2, 4, 7, 0x6474E552
FUNCTION, THREAD_LOCAL = 2, 6  # types of symbols
R_32, GLOB_DAT, JMP_SLOT, RELATIVE, DTPMOD_32, DTPREL_32 = 6, 33, 34, 35, 44, 47


def shared_object(
    *,
    arch=68,
    exports=("calculator_skel_handle_invoke",),
    imports=(),
    weak=(),
    needed=(),
    soname=None,
    abi=3,
    loads=2,
    extra=(),
    tls=False,
    relocations=(),
    swiv=False,
):
    """Return the bytes of a shared object.

    Args:
        arch: The version in its header: 68 for v68.
        exports: Names that it defines.
        imports: Names that it needs; each has a relocation JMP_SLOT.
        weak: Names that it can do without; each has a relocation GLOB_DAT.
        needed: The libraries that it needs.
        soname: Its own name, or None.
        abi: The value of DT_HEXAGON_VER, or None.
        loads: 2: one segment RX, one RW; 4: R, RX, RW, RW.
        extra: Kinds of further program headers.
        tls: Whether it has a thread-local variable, with its segment and its relocations.
        relocations: Kinds of further relocations, which need no symbol.
        swiv: Whether it has a checksum section.
    """
    names = _Names()
    symbols = [bytes(16)]
    for name in exports:
        symbols.append(_symbol(names(name), 0x100, FUNCTION, section=1))
    plt = [len(symbols) + i for i in range(len(imports))]
    symbols += [_symbol(names(name), 0, FUNCTION) for name in imports]
    got = [len(symbols) + i for i in range(len(weak))]
    symbols += [_symbol(names(name), 0, FUNCTION, binding=2) for name in weak]
    if tls:
        symbols.append(_symbol(names("thread_local_variable"), 0x8_0000, THREAD_LOCAL, section=2))
    strings = [(1, names(name)) for name in needed]
    strings += [(14, names(soname))] if soname else []
    data = 0x10_0000  # the address of the first writable segment
    rela = [(GLOB_DAT, s) for s in got] + [(kind, 0) for kind in relocations]
    rela += [(DTPMOD_32, 0), (DTPREL_32, len(symbols) - 1)] if tls else []
    pages = _Pages()
    pages.add("hash", struct.pack("<II", 1, len(symbols)) + bytes(4 + 4 * len(symbols)))
    pages.add("symtab", b"".join(symbols))
    pages.add("strtab", names.bytes)
    slots = data + PAGE // 2
    pages.add("rela", _relocations(rela, slots))
    pages.add("jmprel", _relocations([(JMP_SLOT, s) for s in plt], slots + 4 * len(rela)))
    entries = [
        *([(0x7000_0001, abi)] if abi is not None else []),
        *strings,
        (4, pages.at["hash"]), (5, pages.at["strtab"]), (6, pages.at["symtab"]),
        (7, pages.at["rela"]), (8, 12 * len(rela)), (10, len(names.bytes)),
        (23, pages.at["jmprel"]), (2, 12 * len(plt)), (0, 0),
    ]  # fmt: skip
    dynamic = b"".join(struct.pack("<II", *entry) for entry in entries)
    text = len(pages.bytes)
    slots_end = PAGE // 2 + 4 * (len(rela) + len(plt))
    writable = dynamic.ljust(slots_end + -slots_end % PAGE, b"\0")
    assert len(dynamic) <= PAGE // 2
    headers = [(LOAD, 0, 0, text, 5), (LOAD, text, data, len(writable), 6)]
    if loads == 4:
        half = PAGE
        headers = [
            (LOAD, 0, 0, half, 4),
            (LOAD, half, half, text - half, 5),
            (LOAD, text, data, len(writable), 6),
            (LOAD, text + len(writable), data + len(writable), 16, 6),
        ]
    headers.append((DYNAMIC, text, data, len(dynamic), 6))
    headers += [(kind, text, data, 64, 4) for kind in extra]
    headers += [(TLS, text, data, 64, 4)] if tls else []
    table = b"".join(
        struct.pack("<8I", kind, offset, at, at, size, size, rights, PAGE)
        for kind, offset, at, size, rights in headers
    )
    head = struct.pack(
        "<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 3, 164, 1, 0, 52, 0,
        int(str(arch), 16), 52, 32, len(headers), 0, 0, 0,
    )  # fmt: skip
    body = pages.bytes[len(head) + len(table) :]
    file = head + table + body + writable + bytes(16 if loads == 4 else 0)
    return checksum.with_checksum(file) if swiv else file


class _Names:
    """A table of names, each of which ends with a zero."""

    def __init__(self):
        self.bytes = b"\0"

    def __call__(self, name):
        at = len(self.bytes)
        self.bytes += name.encode() + b"\0"
        return at


class _Pages:
    """Tables in pages of their own, after a page for the headers."""

    def __init__(self):
        self.bytes = bytes(PAGE)
        self.at = {}

    def add(self, name, data):
        self.at[name] = len(self.bytes)
        self.bytes += data + bytes(-len(data) % PAGE or (0 if data else PAGE))


def _symbol(name, value, kind, *, section=0, binding=1):
    return struct.pack("<IIIBBH", name, value, 0, binding << 4 | kind, 0, section)


def _relocations(kinds, first):
    return b"".join(
        struct.pack("<III", first + 4 * i, symbol << 8 | kind, 0)
        for i, (kind, symbol) in enumerate(kinds)
    )
