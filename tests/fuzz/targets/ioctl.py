"""Fuzz programs that use the drivers of the RK3588's NPU: any ioctl and mmap, in any order.

Most calls are valid except for one or two fields.  The driver must stay intact: the buffers of
another file do not change, and afterwards an old and a new file compute right products.
"""

import functools
import struct

import numpy as np

from tests.fuzz import frame, sizes
from tests.sim_rknpu import client
from tests.sim_rknpu.bench import Bench, exact, operands
from tests.sim_rknpu.lists import Task

NATIVE = True
RUNS = 1000
SECONDS = 60

SETTINGS = "reload=1 hang_ms=0.01 log=0 memory=64M"
TASK = Task(4, 64, 64)
KINDS = ("Rocket", "Rknpu", "Rocket")
WORDS = 126  # of the program
ARENA, PART = 1 << 16, 1 << 12
PARTS = ("argument", "job", "tasks", "inputs", "outputs", "text")  # of the arena, one page each

# request -> number, struct, valid fields: a number, or a list for `Client.value`.
REQUESTS = {
    "create": (client.CREATE_BO, "<IIQQ", [4096, 0, 0, 0]),
    "submit": (client.SUBMIT_ROCKET, "<QIIQ", [["at", "job"], 1, 40, 0]),
    "prep": (client.PREP_BO, "<IIq", [["handle", 2], 0, ["soon"]]),
    "fini": (client.FINI_BO, "<II", [["handle", 0], 0]),
    "close": (client.GEM_CLOSE, "<II", [["handle", 9], 0]),
    "version": (client.VERSION, "<iii4x6Q", [0, 0, 0, *[64, ["at", "text"]] * 3]),
    "action": (client.ACTION, "<II", [0, 0]),
    "create vendor": (client.MEM_CREATE, "<IIQQQQiI", [0, client.DATA, 4096, 0, 0, 0, 0, 0]),
    "map vendor": (client.MEM_MAP, "<IIQ", [["handle", 0], 0, 0]),
    "destroy vendor": (client.MEM_DESTROY, "<IIQ", [["handle", 9], 0, ["object", 9]]),
    "sync vendor": (client.MEM_SYNC, "<IIQQQ", [1, 0, ["object", 0], 0, 256]),
    "submit vendor": (client.SUBMIT, "<IIIIIiQIIQqIi10I", [
        client.PC | client.PINGPONG, 6000, 0, 1, 0, 0, ["object", 4], 0, 0, 0, 0, 1, -1,
        0, 1, 1, 0, 1, 0, 0, 0, 0, 0]),
}  # fmt: skip
ROCKETS = ("create", "submit", "submit", "submit", "prep", "fini", "close", "version")
VENDORS = ("create vendor", "submit vendor", "submit vendor", "sync vendor", "map vendor",
           "destroy vendor", "action", "version", "close")  # fmt: skip
STRUCTS = {
    "job": ("<QQQIIII", [["at", "tasks"], ["at", "inputs"], ["at", "outputs"], 1, 8, 3, 1]),
    "tasks": ("<II", [["iova", 3], WORDS]),
    "inputs": ("<III", [["handle", 3], ["handle", 0], ["handle", 1]]),
    "outputs": ("<I", [["handle", 2]]),
}


# --- Making inputs --------------------------------------------------------------------------------


def mutate(rng):
    return [call(rng) for _ in range(rng.choice((1, 3, 10, 30)))]


def call(rng):
    """Return a file, a request, and the unusual fields of its structs."""
    file = rng.randrange(len(KINDS))
    if rng.random() < 0.1:
        return [file, "mmap", anything(rng), rng.choice((1, 4096, 4097, 1 << 20))]
    if rng.random() < 0.05:
        return [file, "open again"]
    usual = VENDORS if KINDS[file] == "Rknpu" else ROCKETS
    name = rng.choice(usual if rng.random() < 0.9 else list(REQUESTS))
    spoilt = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        nested = name == "submit" and rng.random() < 0.7
        spoilt.append(spoil(rng, rng.choice(list(STRUCTS)) if nested else "argument", name))
    if rng.random() < 0.05:
        odd = sizes.anything(rng, REQUESTS[name][0]) % (1 << 32)
        spoilt.append(["request", 0, rng.choice((odd, REQUESTS[name][0] ^ 1 << rng.randrange(32)))])
    if rng.random() < 0.1:
        spoilt.append(["pointer", 0, anything(rng)])
    return [file, name, spoilt]


def spoil(rng, part, request):
    """Return (struct, field, new value)."""
    fields = REQUESTS[request][2] if part == "argument" else STRUCTS[part][1]
    place = rng.randrange(len(fields))
    now = fields[place] if isinstance(fields[place], int) else rng.randrange(8)
    return [part, place, rng.choice((anything(rng), sizes.anything(rng, max(0, now))))]


def anything(rng):
    kind = rng.choice(("handle", "iova", "object", "at", "offset", "number", "number"))
    if kind == "number":
        return sizes.anything(rng, 4096)
    if kind == "at":
        return [kind, rng.choice(PARTS), rng.choice((0, 1, PART - 8, -1, ARENA))]
    return [kind, rng.randrange(12), rng.choice((0, 0, 16, 4096, -16, 1 << 31))]


# --- Running --------------------------------------------------------------------------------------


class Client:
    """Files, the objects that they made, and the memory of their structs."""

    def __init__(self):
        self.ffi, self.lib, _ = client.simulator()
        # If a field says so, the driver may write beyond a struct, into the client's memory.
        self.memory = self.ffi.new("char[]", 3 * ARENA)
        self.arena = int(self.ffi.cast("uintptr_t", self.memory)) + ARENA
        self.files, self.made = [], []
        for kind in KINDS:
            self.add(kind)

    def add(self, kind, place=None):
        """Open a file with the buffers of a product."""
        file = getattr(client, kind)()
        bench = Bench(file, TASK, *operands(TASK))
        buffers = [bench.a, bench.b, bench.c, bench.list]
        if kind == "Rknpu":
            raw = client.entry(bench.list.iova, WORDS, bench.task.enable)
            bench.entries.bytes[:] = np.frombuffer(raw, np.uint8)
            buffers.append(bench.entries)
        made = [(one.handle, one.iova, one.obj) for one in buffers]
        if place is None:
            self.files.append(file)
            self.made.append(made)
        else:
            self.files[place].close()
            self.files[place], self.made[place] = file, made

    def value(self, file, asked):
        """Return the number for *asked*."""
        if isinstance(asked, int):
            return asked
        kind, *what = asked
        if kind == "soon":
            return client.now() + client.SECOND // 100
        if kind == "at":
            return self.arena + PARTS.index(what[0]) * PART + sum(what[1:])
        made = self.made[file]
        handle, iova, obj = made[what[0] % len(made)]
        number = {"handle": handle, "iova": iova, "object": obj, "offset": handle << 12}[kind]
        return number + sum(what[1:])

    def put(self, file, part, form, fields):
        """Write a struct to its part of the arena."""
        kinds = expanded(form)
        data = b"".join(
            struct.pack(f"<{kind}", wrapped(self.value(file, field), kind))
            for kind, field in zip(kinds, fields, strict=True)
        )
        start = ARENA + PARTS.index(part) * PART
        self.ffi.buffer(self.memory, 3 * ARENA)[start : start + len(data)] = data

    def call(self, file, name, spoilt):
        """Make a call, and record the buffer that it created."""
        request, form, fields = REQUESTS[name]
        structs = {part: [form, list(fields)] for part, (form, fields) in STRUCTS.items()}
        structs["argument"] = [form, list(fields)]
        pointer = ["at", "argument"]
        for part, place, new in spoilt:
            if part == "request":
                request = new
            elif part == "pointer":
                pointer = new
            else:
                structs[part][1][place] = new
        for part, (form, fields) in structs.items():
            self.put(file, part, form, fields)
        at = self.ffi.cast("void *", self.value(file, pointer) % (1 << 64))
        result = self.lib.ioctl(self.files[file].fd, request, at)
        if result == 0 and request in (client.CREATE_BO, client.MEM_CREATE):
            self.note(file, name)
        return result == 0

    def note(self, file, name):
        start = ARENA + PARTS.index("argument") * PART
        data = bytes(self.ffi.buffer(self.memory, 3 * ARENA)[start : start + 64])
        if name == "create":
            _, handle, iova, _ = struct.unpack_from("<IIQQ", data)
            self.made[file].append((handle, iova, 0))
        elif name == "create vendor":
            handle, _, _, obj, iova = struct.unpack_from("<IIQQQ", data)
            self.made[file].append((handle, iova, obj))

    def mmap(self, file, offset, nbytes):
        offset = self.value(file, offset) % (1 << 63)
        at = self.lib.mmap(self.ffi.NULL, nbytes, 3, 1, self.files[file].fd, offset)
        if at == self.ffi.cast("void *", -1):
            return False
        self.lib.munmap(at, nbytes)
        return True


def expanded(form):
    """Return the type of each field of a struct's format, with the padding before the field."""
    kinds, count = [], ""
    for letter in form[1:]:
        if letter.isdigit():
            count += letter
        elif letter == "x":
            kinds[-1] += f"{count}x"
            count = ""
        else:
            kinds += [letter] * int(count or 1)
            count = ""
    return kinds


def wrapped(number, kind):
    """Return *number*, wrapped to the range of the type."""
    bits = 8 * struct.calcsize(f"<{kind[0]}")
    number %= 1 << bits
    return number - (1 << bits) if kind[0].islower() and number >> (bits - 1) else number


@functools.cache
def right():
    return exact(TASK, *operands(TASK)).astype(np.int32)


def run(calls):
    client.configure(SETTINGS)
    accepted, others = 0, []
    made = Client()
    try:
        for kind in KINDS[:2]:
            file = getattr(client, kind)()
            bench = Bench(file, TASK, *operands(TASK))
            others.append((file, bench, [bytes(b.bytes) for b in (bench.a, bench.b, bench.list)]))
        for file, name, *arguments in calls:
            if name == "open again":
                made.add(KINDS[file], file)
            elif name == "mmap":
                accepted += made.mmap(file, *arguments)
            else:
                accepted += made.call(file, name, *arguments)
        client.configure("reload=1")
        for _, bench, before in others:
            after = [bytes(b.bytes) for b in (bench.a, bench.b, bench.list)]
            assert after == before, "the buffers of another file changed"
            bench.fill()
            assert np.array_equal(bench.run(), right()), "another file's product is wrong"
    finally:
        for file in (*made.files, *(other[0] for other in others)):
            file.close()
    with getattr(client, KINDS[len(calls) % 2])() as fresh:
        assert np.array_equal(Bench(fresh, TASK, *operands(TASK)).run(), right()), "a new file"
    return "most accepted" if 2 * accepted > len(calls) else "most refused"


def trusted_pointers():
    """Make the driver copy from any address that a program passes."""
    ffi, _, path = client.simulator()
    changed = frame.rebuilt(
        "sim/rknpu", "user.c", "    if (!size) {", "    if (reading) {\n"
        "        __builtin_memcpy((void *) (uintptr_t) to, (void *) (uintptr_t) from, size);\n"
        "        return 0;\n    }\n    if (!size) {",
    )  # fmt: skip
    library = ffi.dlopen(str(changed))
    client.simulator = lambda: (ffi, library, path)


PLANTED = {"trusted pointers": trusted_pointers}
