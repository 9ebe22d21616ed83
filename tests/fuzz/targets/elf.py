"""Fuzz shared objects for the DSP, which `npurt skel` reads and the simulator loads."""

import contextlib
import functools
import io
import struct
import subprocess
import tempfile
from pathlib import Path

from npurt.cli import main
from npurt.hexagon.session.skel import FOLDER
from tests.fuzz import frame, sizes
from tools import build

RUNS = 1500
UNABLE_TO_LOAD = 0x80000406
SDK = frame.ROOT / "tests/data/skel/calculator_skel_v68.elf"
SHELL = frame.ROOT / "sim/fastrpc/shell"

# The fields of each part of a file, in letters of `struct`.  Sources: System V gABI, chapters 4
# and 5.
PARTS = {
    "header": "16xHHIIIIIHHHHHH", "segment": "IIIIIIII", "dynamic": "II", "hash": "I",
    "symbol": "IIIBBH", "relocation": "III",
}  # fmt: skip
LOAD, DYNAMIC = 1, 2  # kinds of segments
CALLED = (
    12,
    13,
    25,
    26,
    27,
    28,
)  # tags of functions that a loader calls; changed addresses would run as code
HASH, STRTAB, SYMTAB, RELA, RELASZ, STRSZ, JMPREL, PLTRELSZ = 4, 5, 6, 7, 8, 10, 23, 2


def mutate(rng):
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        part = rng.choice((*PARTS, "dynamic", "segment", "byte"))
        how = rng.choice(("set", "set", "add", "flip"))
        number = sizes.anything(rng, rng.choice((0, 4096, 0x10000)))
        if how == "add":
            number = rng.choice((1, -1, 4, -4, 12, 16, 4096, -4096, 1 << 31))
        changes.append([part, rng.randrange(1 << 12), rng.randrange(16), how, number])
    return {
        "base": rng.choice(("v68", "v68", "v68", "v73", "sdk")),
        "changes": changes,
        "cut": rng.random() if rng.random() < 0.1 else None,
        "verb": rng.choice(("verify", "info", "--json")),
    }


@functools.cache
def base(name):
    """Return the bytes of a valid file, and the offsets of the entries of each part."""
    data = (SDK if name == "sdk" else FOLDER / f"libnpurt_skel_{name}.so").read_bytes()
    table, size, count = (
        struct.unpack_from("<I", data, 28)[0],
        *struct.unpack_from("<HH", data, 42),
    )
    places = {"header": [0], "segment": [table + i * size for i in range(count)]}
    segments = [struct.unpack_from("<8I", data, at) for at in places["segment"]]

    def at(address):
        inside = (s for s in segments if s[0] == LOAD and s[2] <= address < s[2] + s[4])
        return next(s[1] + address - s[2] for s in inside)

    _, start, _, _, nbytes, *_ = next(s for s in segments if s[0] == DYNAMIC)
    places["dynamic"] = list(range(start, start + nbytes, 8))
    values = dict(struct.iter_unpack("<II", data[start : start + nbytes]))
    buckets, symbols = struct.unpack_from("<II", data, at(values[HASH]))
    places["hash"] = [at(values[HASH]) + 4 * i for i in range(2 + buckets + symbols)]
    places["symbol"] = [at(values[SYMTAB]) + 16 * i for i in range(symbols)]
    places["relocation"] = [
        at(values[table]) + i
        for table, nbytes in ((RELA, RELASZ), (JMPREL, PLTRELSZ))
        for i in range(0, values.get(nbytes, 0), 12)
    ]
    return data, places


def changed(value):
    """Return the bytes of a file with the changes."""
    data, places = base(value["base"])
    data = bytearray(data)
    for part, which, field, how, number in value["changes"]:
        if part == "byte":
            data[(which * 4096 + abs(number)) % len(data)] = field * 17
            continue
        entry = places[part][which % len(places[part])]
        fields = list(struct.unpack_from(f"<{PARTS[part]}", data, entry))
        letters = PARTS[part].replace("16x", "")
        place = field % len(fields)
        bits = 8 * struct.calcsize(letters[place])
        old = fields[place]
        new = {"set": number, "add": old + number, "flip": old ^ 1 << number % bits}[how]
        fields[place] = new % (1 << bits)
        if part != "dynamic" or fields[0] not in CALLED:
            kept = bytes(data[entry : entry + 16]) if part == "header" else b""
            struct.pack_into(f"<{PARTS[part]}", data, entry, *fields)
            data[entry : entry + len(kept)] = kept
    if value["cut"] is not None:
        del data[int(value["cut"] * len(data)) :]
    return bytes(data)


class Loader:
    """The simulator's loader in a process of qemu."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        includes = (SHELL, SHELL.parent, frame.ROOT / "idl")
        sources = [frame.HERE / "loader.c"]
        program = build.compile_program(sources, folder / "loader", includes=includes)
        self._file = folder / "module.so"
        self._process = subprocess.Popen(
            ["qemu-hexagon", "-cpu", "v68", program], cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def load(self, data):
        """Return the code that the loader returns."""
        self._file.write_bytes(data)
        self._process.stdin.write(b"x")
        self._process.stdin.flush()
        answer = self._process.stdout.read(4)
        assert len(answer) == 4, f"the loader died: {self._process.wait()}"
        return struct.unpack("<i", answer)[0]


@functools.cache
def loader():
    return Loader()


def run(value):
    data = changed(value)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        path = Path(folder) / "libx_skel.so"
        path.write_bytes(data)
        verb = ["info"] if value["verb"] == "info" else ["verify", "--arch", "v68"]
        more = ["--json"] if value["verb"] == "--json" else []
        with contextlib.redirect_stderr(io.StringIO()):
            status = main(["skel", *verb, str(path), *more])
    assert status in (0, 1, 2)
    assert said.getvalue() or status == 2 or verb == ["info"]
    if value["base"] == "sdk" or verb == ["info"]:
        return f"{verb[0]} alone"
    code = loader().load(data)
    assert code == 0 or code & 0xFFFFFFFF == UNABLE_TO_LOAD, hex(code)
    # Other kinds and needed libraries are warnings; the number of headers that a DSP accepts is
    # not known.
    known = (
        "relocations of the unusual kind" not in said.getvalue()
        and "from the DSP's own files" not in said.getvalue()
        and data[44] <= 16
        and data[45] == 0
    )
    assert status or code == 0 or not known, "the simulator does not load what should load"
    return "loads" if status == 0 else "loads elsewhere" if code == 0 else "does not load"


def unchecked_relocations():
    """Make the loader accept relocations of any address."""
    from npurt.hexagon.doctor import elf

    elf._Image._check_relocation = lambda self, place, symbol, symbols: None


PLANTED = {"unchecked relocations": unchecked_relocations}
