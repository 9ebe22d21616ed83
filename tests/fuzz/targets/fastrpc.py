"""Fuzz programs that use libcdsprpc: any calls in any order, with valid and invalid arguments.

The library must stay intact: a valid call that it accepts returns the right bytes and writes to no
other memory, and after all calls a new session works.  Skels are those of tests/sim_fastrpc.
"""

import atexit
import ctypes as c
import functools
import os
import shutil
import tempfile
from pathlib import Path

from tests.fuzz import frame, sizes
from tests.sim_fastrpc import rpc as libcdsprpc
from tests.sim_fastrpc.rpc import CDSP, INVERT, SLEEP, WORK, Block, QueueBuffer, RemoteArg, Rpc
from tools import build

NATIVE = True
RUNS = 300
SECONDS = 60

SKELS = Path(libcdsprpc.__file__).with_name("skels")
NAMES = ("probe", "probe", "probe", "packets", "stranger", "missing", "")
DOMAINS = (3, 3, 3, 3, 11, 19, 27, -1, 0, 4, 35, 1 << 30)
SESSIONS = (3, 11, 19, 27)
FLAGS = (3, 3, 2, 0, 16, 1, 4, 1 << 31)
MAX_BYTES = 1 << 20  # of a buffer
OWN_BYTES = 1 << 16  # bytes of the program's own memory
EDGE = 64  # bytes on each side that no call may write
FILL = 0x5C
MAX_US = 2000  # microseconds that a call may sleep or wait


# --- Making inputs --------------------------------------------------------------------------------


def mutate(rng):
    calls = [["open", 0, 3, 0]] if rng.random() < 0.8 else []
    calls += [["alloc", 25, 1, rng.choice((4096, 5000, 65536))]] if rng.random() < 0.7 else []
    verbs = list(MAKE)
    for _ in range(rng.choice((1, 4, 12, 30))):
        verb = rng.choices(verbs, [MAKE[name][0] for name in verbs])[0]
        calls.append([verb, *MAKE[verb][1](rng)])
    return calls


def which(rng):
    """Return [index] of an existing object, or any number."""
    return [rng.randrange(4)] if rng.random() < 0.85 else sizes.anything(rng, 4) % (1 << 64)


def number(rng, usual):
    """Return *usual*, or any number of 31 bits."""
    return usual if rng.random() < 0.8 else sizes.anything(rng, usual) % (1 << 31)


def size(rng):
    return rng.choice((0, 1, 4, 127, 128, 129, 4096, sizes.limit(rng, 16)))


def buffer(rng):
    """Return one argument of a call: in the program's own memory, in a block, or none."""
    kind = rng.choice(("own", "own", "own", "block", "block", "address"))
    if kind == "own":
        return ["own", rng.randrange(OWN_BYTES), size(rng)]
    if kind == "block":
        return ["block", rng.randrange(4), rng.choice((0, 128, 4095)), size(rng)]
    return ["address", rng.choice((0, 0x10, 1 << 47, (1 << 64) - 1)), size(rng)]


def invoke(rng):
    gives, takes = rng.choice((0, 1, 1, 2, 40)), rng.choice((0, 1, 1, 3))
    scalars = rng.randrange(2, 20) << 24 | gives << 16 | takes << 8
    if rng.random() < 0.2:
        scalars = sizes.anything(rng, scalars) % (1 << 32)
    words = [rng.choice((rng.randrange(8), sizes.anything(rng, 64) % (1 << 32))) for _ in range(4)]
    return [which(rng), scalars, [buffer(rng) for _ in range(gives + takes)], words]


MAKE = {  # verb -> (frequency, its arguments)
    "open": (4, lambda rng: [rng.randrange(len(NAMES)), rng.choice(DOMAINS), rng.randrange(5)]),
    "close": (2, lambda rng: [which(rng)]),
    "invert": (6, lambda rng: [rng.randrange(4), size(rng), rng.randrange(4), rng.randrange(4)]),
    "invoke": (8, invoke),
    "alloc": (4, lambda rng: [number(rng, 25), number(rng, 1), number(rng, 4096)]),
    "free": (2, lambda rng: [which(rng)]),
    "map": (4, lambda rng: [which(rng), rng.choice(DOMAINS), number(rng, 0), number(rng, 4096),
                            rng.choice(FLAGS)]),
    "unmap": (2, lambda rng: [which(rng), rng.choice(DOMAINS), number(rng, 4096)]),
    "fd": (1, lambda rng: [which(rng)]),
    "register": (2, lambda rng: [size(rng), rng.choice((-1, 0, 1, 1 << 20))]),
    "session": (2, lambda rng: [rng.randrange(12), rng.choice((0, 4, 8, 12, 64)),
                                number(rng, 3), number(rng, 1)]),
    "control": (2, lambda rng: [rng.randrange(12), rng.choice((0, 4, 8, 12, 64)),
                                number(rng, 3), rng.randrange(8)]),
    "handle control": (1, lambda rng: [which(rng), rng.randrange(6), rng.choice((0, 4, 8, 64)),
                                       number(rng, 1)]),
    "queue": (2, lambda rng: [rng.choice(DOMAINS), number(rng, 0), number(rng, 0),
                              number(rng, 0)]),
    "import": (2, lambda rng: [rng.randrange(4), rng.randrange(4), rng.randrange(2)]),
    "write": (4, lambda rng: [rng.randrange(4), number(rng, 0), rng.choice((0, 0, 1, 8, 65)),
                              rng.choice((0, 3, 4096, 65536)), rng.randrange(4), size(rng)]),
    "read": (3, lambda rng: [rng.randrange(4), rng.choice((0, 1, 64)), rng.choice((0, 3, 65536))]),
    "peek": (1, lambda rng: [rng.randrange(4)]),
    "close queue": (1, lambda rng: [rng.randrange(4)]),
}  # fmt: skip


# --- Running --------------------------------------------------------------------------------------


CHANGED = []  # the simulator with a planted defect


@functools.cache
def library():
    """Return a separate copy of the simulator, which finds the skels."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made, shell = build.make(build.PACKAGE, build.host(), ("fastrpc", "shell"))
    shutil.copy(CHANGED[0] if CHANGED else made, folder / "librpc_fuzzed.so")
    shutil.copy(shell, folder)
    for name in ("probe", "packets", "stranger"):
        build.compile_skel(
            [SKELS / f"{name}.c"], "v68", folder / f"lib{name}_skel.so", includes=[SKELS]
        )
    os.environ["DSP_LIBRARY_PATH"] = str(folder)
    return Rpc(folder / "librpc_fuzzed.so")


class Client:
    """The objects of a program: handles, blocks, queues, and its own memory."""

    def __init__(self):
        self.rpc = library()
        self.handles, self.blocks, self.queues = [], [], []
        self.own = (c.c_uint8 * (OWN_BYTES + MAX_BYTES))()
        self.accepted = 0
        self.lingering = set()  # sessions that were started for a call that failed, and that remain
        self.crashing = set()  # sessions in which another queue ends the process

    def run(self, calls):
        """Make the calls, then release all objects."""
        for domain in (3, 11):
            self.rpc.ask_unsigned(domain)
        try:
            for verb, *arguments in calls:
                code = DO[verb](self, *arguments)
                self.accepted += code == 0
        finally:
            self.release()

    def release(self):
        for handle, _ in self.handles:
            self.rpc.close(handle)
        # A queue that a skel has not closed keeps its session alive until the skel is closed.
        left = [queue for queue in self.queues if self.rpc.dspqueue_close(queue)]
        for domain in self.live() if left else ():
            self.rpc.end_process(domain)
        while left:
            left = [queue for queue in left if self.rpc.dspqueue_close(queue)]
        for block in self.blocks:
            block.free()
        for domain in self.lingering:
            self.rpc.close_session(domain)

    def handle(self, asked):
        """Return the handle of *asked*, an [index] or a number."""
        if isinstance(asked, int):
            return asked
        return self.handles[asked[0] % len(self.handles)][0] if self.handles else 0

    def block(self, asked):
        """Return the block of *asked*, or None."""
        place = asked if isinstance(asked, int) else asked[0]
        known = self.blocks and (isinstance(asked, list) or place < len(self.blocks))
        return self.blocks[place % len(self.blocks)] if known else None

    def queue_of(self, place):
        return self.queues[place % len(self.queues)] if self.queues else None

    def place(self, part):
        """Return the address and size that an argument of a call has.

        An output is always in memory of this program, for any size in *asked*.
        """
        kind, *where = part
        if kind == "own":
            return c.addressof(self.own) + where[0], min(where[1], MAX_BYTES)
        if kind == "block" and self.blocks:
            block = self.blocks[where[0] % len(self.blocks)]
            return block.at + where[1] % block.nbytes, where[2]
        return (0, 0) if kind == "block" else (where[0], where[1])

    # --- calls; each returns a code

    def open(self, name, domain, damage):
        text = libcdsprpc.uri(NAMES[name], rest=f"&_dom={'cdsp' if domain == 3 else domain}")
        text = (text, text, text[: len(text) // 2], text + "&_session=1", text * 40)[damage]
        handle = c.c_uint64(0)
        code = self.rpc.remote_handle64_open(text.encode(), c.byref(handle))
        if code == 0:
            self.handles.append((handle.value, NAMES[name]))
        else:
            self.lingering |= self.live()
        return code

    def close(self, asked):
        handle = self.handle(asked)
        self.handles = [pair for pair in self.handles if pair[0] != handle]
        return self.rpc.close(handle)

    def invert(self, place, nbytes, gives, takes):
        """Call the probe, which inverts bytes, and check the bytes that it wrote."""
        probes = [handle for handle, name in self.handles if name == "probe"]
        if not probes or nbytes + 2 * EDGE > OWN_BYTES // 2:
            return -1
        data = bytes((i * 7 + place) & 255 for i in range(nbytes))
        given = c.create_string_buffer(data, max(1, nbytes))
        result = c.create_string_buffer(bytes([FILL]) * (nbytes + 2 * EDGE), nbytes + 2 * EDGE)
        source, target = c.addressof(given), c.addressof(result) + EDGE
        arguments = (RemoteArg * 2)()
        arguments[0].buffer = libcdsprpc.RemoteBuffer(source, nbytes)
        arguments[1].buffer = libcdsprpc.RemoteBuffer(target, nbytes)
        scalars = INVERT << 24 | 1 << 16 | 1 << 8
        code = self.rpc.remote_handle64_invoke(probes[place % len(probes)], scalars, arguments)
        edge = bytes([FILL]) * EDGE
        assert result.raw[:EDGE] == result.raw[nbytes + EDGE :] == edge, (
            "it wrote beside the result"
        )
        assert given.raw[:nbytes] == data, "it wrote to what it was given"
        if code == 0:
            inverted = bytes(255 - byte for byte in data)
            assert result.raw[EDGE : nbytes + EDGE] == inverted, "a wrong result"
        return code

    def invoke(self, asked, scalars, parts, words):
        if scalars >> 24 & 31 in (SLEEP, WORK) or len(self.names(asked) - {"probe"}):
            words = [word % MAX_US for word in words]
        # The struct has space for the largest number of arguments that the scalars can give.
        arguments = (RemoteArg * 600)()
        for argument, part in zip(arguments, parts, strict=False):
            argument.buffer = libcdsprpc.RemoteBuffer(*self.place(part))
        given = (c.c_uint32 * 4)(*words)
        if scalars >> 16 & 255 and words[0] % 2 == 0:
            arguments[0].buffer = libcdsprpc.RemoteBuffer(c.addressof(given), 16)
        return self.rpc.remote_handle64_invoke(self.handle(asked), scalars, arguments)

    def names(self, asked):
        return {name for handle, name in self.handles if handle == self.handle(asked)}

    def alloc(self, heap, flags, nbytes):
        at = self.rpc.rpcmem_alloc(heap, flags, min(nbytes, MAX_BYTES))
        if at in (None, 0):
            return -1
        block = Block.__new__(Block)
        block.rpc, block.at, block.nbytes = self.rpc, at, min(nbytes, MAX_BYTES)
        block.fd = self.rpc.rpcmem_to_fd(at)
        self.blocks.append(block)
        return 0

    def free(self, asked):
        block = self.block(asked)
        if block:
            self.blocks.remove(block)
        self.rpc.rpcmem_free(block.at if block else 0 if isinstance(asked, list) else asked)
        return 0

    def map(self, asked, domain, offset, nbytes, flags):
        block = self.block(asked)
        fd, at = (block.fd, block.at) if block else (-1, None)
        return self.rpc.fastrpc_mmap(domain, fd, at, offset, nbytes, flags)

    def unmap(self, asked, domain, nbytes):
        block = self.block(asked)
        fd, at = (block.fd, block.at) if block else (-1, None)
        return self.rpc.fastrpc_munmap(domain, fd, at, nbytes)

    def fd(self, asked):
        block = self.block(asked)
        return self.rpc.rpcmem_to_fd(block.at if block else 0 if isinstance(asked, list) else asked)

    def register(self, nbytes, fd):
        """Register memory of this program, and deregister it."""
        at = c.addressof(self.own)
        self.rpc.remote_register_buf_attr2(at, nbytes, fd, 0)
        self.rpc.remote_register_buf_attr2(at, nbytes, -1, 0)
        return 0

    def session(self, request, nbytes, first, second):
        return self.rpc.remote_session_control(request, numbers(first, second), nbytes)

    def control(self, request, nbytes, first, second):
        code = self.rpc.remote_handle_control(request, numbers(first, second), nbytes)
        self.lingering |= self.live() if code else set()
        return code

    def handle_control(self, asked, request, nbytes, first):
        data = numbers(first)
        return self.rpc.remote_handle64_control(self.handle(asked), request, data, nbytes)

    def queue(self, domain, flags, request, response):
        if (CDSP if domain == -1 else domain) in self.crashing:
            return -1
        made, none = c.c_void_p(), libcdsprpc.CALLBACK()
        code = self.rpc.dspqueue_create(
            domain, flags, request, response, none, none, None, c.byref(made)
        )
        if code == 0:
            self.queues.append(made.value)
        return code

    def import_queue(self, place, skel, callback):
        packets = [handle for handle, name in self.handles if name == "packets"]
        if not packets or not self.queues:
            return -1
        name = c.c_uint64()
        assert self.rpc.dspqueue_export(self.queue_of(place), c.byref(name)) == 0
        return self.rpc.call_words(packets[skel % len(packets)], 2, name.value, callback)[0]

    def write(self, place, flags, count, nbytes, block, size):
        given = (QueueBuffer * 65)()
        chosen = self.block([block])
        for one in given[:count] if chosen else ():
            one.fd, one.size, one.offset, one.flags = chosen.fd, size, 0, flags % 32
        message = c.create_string_buffer(nbytes + 1)
        return self.rpc.dspqueue_write(
            self.queue_of(place), flags, count, given, nbytes, message.raw, MAX_US
        )

    def read(self, place, max_buffers, maximum):
        flags, count, nbytes = c.c_uint32(), c.c_uint32(), c.c_uint32()
        buffers, message = (QueueBuffer * 64)(), c.create_string_buffer(65536 + EDGE)
        c.memset(message, FILL, len(message))
        code = self.rpc.dspqueue_read(
            self.queue_of(place), c.byref(flags), max_buffers, c.byref(count), buffers, maximum,
            c.byref(nbytes), message, MAX_US,
        )  # fmt: skip
        assert message.raw[maximum:] == bytes([FILL]) * (65536 + EDGE - maximum), "beyond the room"
        return code

    def peek(self, place):
        out = [c.c_uint32() for _ in range(3)]
        return self.rpc.dspqueue_peek(self.queue_of(place), *map(c.byref, out), MAX_US)

    def close_queue(self, place):
        queue = self.queue_of(place)
        before = self.live()
        code = self.rpc.dspqueue_close(queue)
        if code == 0:
            self.queues = [other for other in self.queues if other != queue]
        self.crashing |= before - self.live()
        return code

    def live(self):
        return {domain for domain in SESSIONS if self.rpc.process(domain) > 0}


def numbers(*values):
    """Return 64 bytes that begin with *values*."""
    return (c.c_uint32 * 16)(*(value & 0xFFFFFFFF for value in values))


NAMED = {"import": "import_queue"}
DO = {verb: getattr(Client, NAMED.get(verb, verb.replace(" ", "_"))) for verb in MAKE}


def run(calls):
    rpc = library()
    rpc.control("reset")
    client = Client()
    client.run(calls)
    left = [domain for domain in SESSIONS if rpc.process(domain) > 0]
    assert not left, f"all is closed, and sessions {left} are open"
    assert rpc.ask_unsigned(CDSP) == 0
    handle = rpc.opened("probe")
    code, answer = rpc.call(handle, INVERT, b"good", 4)
    assert (code, answer) == (0, bytes(255 - byte for byte in b"good")), "a new session fails"
    assert rpc.close(handle) == 0
    return "most accepted" if client.accepted > len(calls) / 2 else "most refused"


def queues_keep_sessions():
    """Keep a session that only a queue used when the queue is closed."""
    CHANGED.append(
        frame.rebuilt("sim/fastrpc", "queue.c", "|= session_stop_unused(s);", "|= session_used(s);")
    )


PLANTED = {"queues keep sessions": queues_keep_sessions}
