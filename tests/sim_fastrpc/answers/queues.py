"""Scenarios of dspqueue: valid, invalid, too early, too many, full, and in a dead session."""

import ctypes as ct

from tests.sim_fastrpc.answers.client import CDSP, scenario, uri
from tests.sim_fastrpc.rpc import QueueBuffer

UNTOUCHED = 77
TOO_MANY = 70  # buffers and queues


@scenario
def queues_early(c):
    code, _queue = c.queue()
    c.say("create, signed", code)


@scenario
def queues_first(c):
    c.unsigned()
    for domain in (-2, 32, 0, 1, 4, 5, 99):
        c.say(f"create, domain {domain}", c.queue(domain)[0])
    code, queue = c.queue()
    c.say("create", code)
    number = ct.c_uint64(0)
    code = c.lib.dspqueue_export(queue, ct.byref(number))
    c.say("export", code, "number" if number.value else "0")
    at, fd = c.block()
    c.say("fastrpc_mmap, no handle", c.map(fd, at))
    c.say("unsigned 0", c.unsigned(CDSP, 0))
    c.say("close", c.lib.dspqueue_close(queue))
    c.say("fastrpc_mmap after it", c.map(fd, at, 4096))


@scenario
def queue_again(c):
    c.unsigned()
    code, queue = c.queue()
    c.say("create", code)
    c.say("close", c.lib.dspqueue_close(queue))
    code, queue = c.queue()
    c.say("create again", code)


@scenario
def queue_last(c):
    handle = c.started()
    code, queue = c.queue()
    c.say("close of the handle", c.close(handle))
    c.say("close of the queue", c.lib.dspqueue_close(queue))
    code, handle = c.open(uri())
    c.say("open again", code)
    c.say("queue again", c.queue()[0])


@scenario
def queue_domain(c):
    c.unsigned()
    code, queue = c.queue(-1)
    c.say("create, domain -1", code)
    c.say("close", c.lib.dspqueue_close(queue) if code == 0 else "not made")


@scenario
def queues(c):
    handle = c.started()
    c.say("create to null", c.lib.dspqueue_create(CDSP, 0, 0, 0, None, None, None, None))
    _sizes(c)
    code, queue = c.queue()
    c.say("create", code)
    _many(c)
    read = _Read(c, queue)
    c.say("read, empty, 1 ms", read(1000))
    c.say("read, empty, 0", read(0))
    c.say("read, empty, noblock", c.lib.dspqueue_read_noblock(queue, *read.into))
    c.say("peek, empty, 1 ms", c.lib.dspqueue_peek(queue, *read.about, 1000))
    _messages(c, queue)
    _buffers(c, queue)
    for which in range(9):
        value = ct.c_uint64(UNTOUCHED)
        code = c.lib.dspqueue_get_stat(queue, which, ct.byref(value))
        c.say(f"stat {which}", code, value.value if code or which in (1, 7) else "some")
    c.say("early wakeup", c.lib.dspqueue_write_early_wakeup_noblock(queue, 10, 0))
    c.say("close the session's handle", c.close(handle))
    c.say("write after it", _write(c, queue, bytes(8)))
    c.say("read after it, 1 ms", read(1000))
    c.say("close", c.lib.dspqueue_close(queue))


def _sizes(c):
    for name, flags, request, answer in (
        ("flags 1", 1, 0, 0),
        ("17 MiB", 0, 17 << 20, 0),
        ("answers of 17 MiB", 0, 0, 17 << 20),
        ("16 MiB", 0, 16 << 20, 16 << 20),
        ("64 bytes", 0, 64, 64),
    ):
        code, queue = c.queue(CDSP, flags, request, answer)
        made = {None: "null", UNTOUCHED: "untouched"}.get(queue.value, "made")
        c.say(f"create, {name}", code, made)
        if code == 0:
            c.lib.dspqueue_close(queue)


def _many(c):
    made = [c.queue(CDSP, 0, 64, 64)]
    while made[-1][0] == 0 and len(made) < TOO_MANY:
        made.append(c.queue(CDSP, 0, 64, 64))
    good = [queue for code, queue in made if code == 0]
    c.say("queues beside it", made[-1][0], len(good))
    for queue in good:
        c.lib.dspqueue_close(queue)


class _Read:
    """Reads a packet into separate memory."""

    def __init__(self, c, queue, room=70000):
        self.read, self.queue = c.lib.dspqueue_read, queue
        self.words = [ct.c_uint32(UNTOUCHED) for _ in range(3)]
        self.about = [ct.byref(word) for word in self.words]
        flags, count, nbytes = self.about
        self.buffers = (QueueBuffer * TOO_MANY)()
        self.message = ct.create_string_buffer(room)
        self.into = flags, TOO_MANY, count, self.buffers, room, nbytes, self.message

    def __call__(self, timeout_us):
        return self.read(self.queue, *self.into, timeout_us)


def _write(c, queue, message, *buffers, flags=0):
    listed = (QueueBuffer * len(buffers))(*buffers) if buffers else None
    arguments = len(buffers), listed, len(message), message or None
    return c.lib.dspqueue_write_noblock(queue, flags, *arguments)


def _messages(c, queue):
    c.say("write, nothing", _write(c, queue, b""))
    c.say("write, message of 65536", _write(c, queue, bytes(65536)))
    c.say("write, message of 65537", _write(c, queue, bytes(65537)))
    c.say("write, reserved flags", _write(c, queue, bytes(8), flags=0x8000))


def _buffers(c, queue):
    at, fd = c.block()

    def write(name, *buffers, shown=()):
        c.say(f"write, {name}", _write(c, queue, bytes(8), *buffers), *shown)

    def buffer(size=8192, offset=0, flags=0, address=0):
        return QueueBuffer(fd, size, offset, flags, address)

    whole = buffer(address=at)
    write("a buffer that is not mapped", whole)
    c.map(fd, at)
    write("a buffer", whole)
    write("a buffer over its end", buffer(offset=4096, address=at))
    empty = buffer(size=0)
    write("a buffer of size 0", empty, shown=[empty.size])
    write("a buffer of size 0 at 4", buffer(size=0, offset=4))
    write("reference", buffer(flags=4))
    c.say("unmap while referenced", c.unmap(fd, at))
    write("no more reference", buffer(flags=8))
    write("one too many", buffer(flags=8))
    write("both", buffer(flags=12))
    write("reserved buffer flags", buffer(flags=0x100))
    write("64 buffers", *[whole] * 64)
    write("65 buffers", *[whole] * 65)
    c.say("unmap", c.unmap(fd, at))


@scenario
def queue_full(c):
    c.started()
    _code, queue = c.queue(CDSP, 0, 256, 256)
    c.say("write of 248", _write(c, queue, bytes(248)))
    c.say("write of 240", c.lib.dspqueue_write(queue, 0, 0, None, 240, bytes(240), 2000))
    c.say("write of 241", c.lib.dspqueue_write(queue, 0, 0, None, 241, bytes(241), 2000))
    c.say("close", c.lib.dspqueue_close(queue))


@scenario
def queue_null_close(c):
    c.unsigned()
    c.say("close of null", c.lib.dspqueue_close(None))


@scenario
def queue_null_export(c):
    c.started()
    number = ct.c_uint64(0)
    c.say("export of null", c.lib.dspqueue_export(None, ct.byref(number)))


@scenario
def queue_write_null(c):
    c.started()
    _, queue = c.queue()
    c.say("write of 8 bytes from null", c.lib.dspqueue_write_noblock(queue, 0, 0, None, 8, None))


@scenario
def queue_twice(c):
    c.started()
    _, queue = c.queue()
    c.queue()
    c.say("close", c.lib.dspqueue_close(queue))
    c.say("close again", c.lib.dspqueue_close(queue))


@scenario
def queue_exit(c):
    c.started()
    code, _queue = c.queue()
    c.say("left open at exit", code)


@scenario
def queue_request(c):
    c.say("request of null", c.lib.dspqueue_request(None))


@scenario
def crash_queue(c):
    handle = c.started()
    code, queue = c.queue()
    c.say("echo that kills the process", *c.echo(handle))
    c.say("queue, write", _write(c, queue, bytes(8)))
    c.say("queue, read, 10 ms", _Read(c, queue)(10000))
    c.say("queue, close", c.lib.dspqueue_close(queue))
    c.say("queue, create another", c.queue()[0])
    c.say("close", c.close(handle))
    code, handle = c.open(uri())
    c.say("open after that", code)
    c.say("echo after that", *c.echo(handle) if code == 0 else (code,))
