"""Scenarios of handles: open, call and close, and handles after a failure of the DSP."""

import ctypes as ct
import os
import tempfile
from pathlib import Path

from tests.limits import eventually
from tests.sim_fastrpc.answers.client import CDSP, ECHO, SKEL, ints, pointer, scenario, uri
from tests.sim_fastrpc.rpc import RemoteArg, RemoteBuffer, RemoteDma

NOTHING = b"file:///libnone_skel.so?none_skel_handle_invoke&_modver=1.0&_dom=cdsp"
AWAY = 0x72  # the code of an open while the DSP restarts


@scenario
def opens(c):
    c.unsigned()
    long = "x" * 300
    cases = {
        "good": uri(),
        "no session": f"{SKEL}&_dom=cdsp".encode(),
        "no domain": SKEL.encode(),
        "empty": b"",
        "_dom=CDSP": uri(0, "CDSP"),
        "_dom=cdspx": uri(0, "cdspx"),
        "_dom=cdsp0": uri(0, "cdsp0"),
        "_dom=cdsp1": uri(0, "cdsp1"),
        "_dom=adsp": uri(0, "adsp"),
        "_dom=": uri(0, ""),
        "two domains": f"{SKEL}&_dom=cdsp&_dom=adsp".encode(),
        "session 3": uri(3),
        "session 4": uri(4),
        "session -1": uri(-1),
        "session empty": uri(""),
        "session abc": uri("abc"),
        "session 01": uri("01"),
        "session 1x": uri("1x"),
        "session ' 1'": uri(" 1"),
        "session 10": uri(10),
        "session before domain": f"{SKEL}&_session=1&_dom=cdsp".encode(),
        "no such file": NOTHING,
        "no such symbol": b"file:///libnpurt_skel_v68.so?nothing&_modver=1.0&_dom=cdsp",
        "no ?": b"file:///libnpurt_skel_v68.so&_dom=cdsp",
        "no scheme": b"libnpurt_skel_v68.so?npurt_skel_handle_invoke&_dom=cdsp",
        "a name of 300": f"file:///{long}.so?x&_dom=cdsp".encode(),
        "a symbol of 300": f"file:///libnpurt_skel_v68.so?{long}&_dom=cdsp".encode(),
        "300 behind": f"{SKEL}&_dom=cdsp&_x={long}".encode(),
        "5000 behind": (f"{SKEL}&_dom=cdsp&_x=" + "x" * 5000).encode(),
        "no version": b"file:///libnpurt_skel_v68.so?npurt_skel_handle_invoke&_dom=cdsp",
    }
    for label, text in cases.items():
        code, handle = c.open(text)
        domain = ct.c_int(77)
        if code == 0:
            c.lib.remote_handle64_control(handle, 4, ct.byref(domain), 4)
        c.say(label, code, domain.value)
        if code == 0:
            c.close(handle)
    handle = ct.c_uint64(0)
    c.say("null name", c.lib.remote_handle64_open(None, ct.byref(handle)))


@scenario
def open_null(c):
    c.unsigned()
    c.say("handle to null", c.lib.remote_handle64_open(uri(), None))


@scenario
def open_signed(c):
    code, _handle = c.open(uri())
    c.say("open", code)
    c.say("unsigned afterwards", c.unsigned(CDSP))
    c.say("open", c.open(uri())[0])


@scenario
def open_failed(c):
    c.unsigned()
    c.say("open of nothing", c.open(NOTHING)[0])
    at, fd = c.block()
    c.say("fastrpc_mmap after it", c.map(fd, at))
    c.say("dump after it", c.control(8, ints(CDSP, 1)))
    c.say("unsigned 0 after it", c.unsigned(CDSP, 0))


@scenario
def open_relative(c):
    c.unsigned()
    folder = os.environ["DSP_LIBRARY_PATH"]
    skel = f"{folder}/libnpurt_skel_v68.so"

    def attempt(name, text, **variables):
        for variable in ("DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"):
            os.environ.pop(variable, None)
        os.environ.update(variables)
        code, handle = c.open(text)
        c.say(name, code)
        if code == 0:
            c.close(handle)

    attempt("ADSP_LIBRARY_PATH", uri(), ADSP_LIBRARY_PATH=folder)
    attempt("DSP_LIBRARY_PATH", uri(), DSP_LIBRARY_PATH=folder)
    attempt("DSP_LIBRARY_PATH, second of two by ;", uri(), DSP_LIBRARY_PATH=f"/none;{folder}")
    attempt("DSP_LIBRARY_PATH, second of two by :", uri(), DSP_LIBRARY_PATH=f"/none:{folder}")
    os.chdir(folder)
    attempt("current folder, no variable", uri())
    attempt("current folder, DSP_LIBRARY_PATH empty", uri(), DSP_LIBRARY_PATH="")
    attempt("current folder, DSP_LIBRARY_PATH=/none", uri(), DSP_LIBRARY_PATH="/none")
    os.chdir("/")
    entry = SKEL.partition("?")[2]
    attempt("absolute path", f"file://{skel}?{entry}&_dom=cdsp".encode())
    with tempfile.TemporaryDirectory() as made:
        os.makedirs(f"{made}/cdsp")
        os.symlink(skel, f"{made}/cdsp/libnpurt_skel_v68.so")
        attempt("in cdsp/ of the folder", uri(), DSP_LIBRARY_PATH=made)
        Path(made, "libempty_skel.so").touch()
        empty = b"file:///libempty_skel.so?x&_modver=1.0&_dom=cdsp"
        attempt("an empty file", empty, DSP_LIBRARY_PATH=made)


@scenario
def calls(c):
    handle = c.started()
    c.say("echo", *c.echo(handle))
    value, got = ct.c_uint64(1), ct.c_uint64(0)
    arguments = (RemoteArg * 8)()
    for i in range(8):
        arguments[i].buffer = RemoteBuffer(ct.addressof(value if i == 0 else got), 8)
    invoke = c.lib.remote_handle64_invoke
    c.say("method 31", invoke(handle, 31 << 24 | 1 << 16 | 1 << 8, arguments))
    c.say("method 2, no arguments", invoke(handle, 2 << 24, None))
    c.say("method 2, null arguments", invoke(handle, ECHO, None))
    c.say("method 2, three in", invoke(handle, 2 << 24 | 3 << 16 | 1 << 8, arguments))
    c.say("method 0", invoke(handle, 0 << 24 | 2 << 16 | 1, arguments))
    arguments[0].buffer.bytes = 4
    c.say("in too short", invoke(handle, ECHO, arguments))
    arguments[0].buffer = RemoteBuffer(0, 8)
    c.say("in null", invoke(handle, ECHO, arguments))
    arguments[0].buffer = RemoteBuffer(0x1000, 8)
    c.say("in wild", invoke(handle, ECHO, arguments))
    arguments[0].buffer = RemoteBuffer(ct.addressof(value), 8)
    arguments[1].buffer = RemoteBuffer(0x1000, 8)
    c.say("out wild", invoke(handle, ECHO, arguments))
    arguments[1].buffer = RemoteBuffer(0, 0)
    c.say("out of 0 bytes", invoke(handle, ECHO, arguments))
    arguments[1].buffer = RemoteBuffer(ct.addressof(got), 2**31)
    c.say("out of 2 GiB", invoke(handle, ECHO, arguments))
    at, fd = c.block()
    arguments[0].buffer = RemoteBuffer(at, 8)
    arguments[1].buffer = RemoteBuffer(at + 8192 - 8, 8)
    c.say("in rpcmem", invoke(handle, ECHO, arguments))
    arguments[1].buffer = RemoteBuffer(at + 8192 - 4, 8)
    c.say("out over the end of rpcmem", invoke(handle, ECHO, arguments))
    arguments[1].dma = RemoteDma(fd, 0)
    arguments[1].buffer = RemoteBuffer(ct.addressof(got), 8)
    arguments[2].dma = RemoteDma(9999, 0)
    c.say("with a handle of no descriptor", invoke(handle, ECHO | 1 << 4, arguments))
    c.say("echo afterwards", *c.echo(handle))
    c.say("close", c.close(handle))
    c.say("echo of the closed", *c.echo(handle))
    c.say("close again", c.close(handle))
    domain = ct.c_int(77)
    c.say("control of the closed", c.lib.remote_handle64_control(handle, 4, ct.byref(domain), 4))


@scenario
def handles(c):
    first = c.started()
    code, second = c.open(uri())
    c.say("open again", code, "other" if second != first else "the same")
    c.say("close the first", c.close(first))
    c.say("echo of the first", *c.echo(first))
    c.say("echo of the second", *c.echo(second))
    c.say("unsigned again", c.unsigned(CDSP))
    c.say("unsigned 0", c.unsigned(CDSP, 0))
    c.say("unsigned 2", c.unsigned(CDSP, 2))
    data = ints(CDSP, 77)
    c.say("type", c.control(10, data), data[1])
    c.say("threads", c.control(1, ints(CDSP, 100, 65536)))
    c.say("relative priority", c.control(4, ints(CDSP, 1)))
    c.say("dump", c.control(8, ints(CDSP, 1)))
    code, other = c.open(uri(1))
    c.say("open of session 1", code)
    c.say("echo of session 1", *c.echo(other))
    c.say("close the second", c.close(second))
    c.say("echo of session 1 still", *c.echo(other))
    c.say("echo of the second, closed", *c.echo(second))
    code, third = c.open(uri())
    c.say("reopen", code)
    c.say("echo", *c.echo(third))
    c.say("unsigned 0 for a session that is closed", c.unsigned(19, 0))
    c.say("close", c.close(third))
    c.say("close of session 1", c.close(other))
    c.say("reopen, a tenth time", [c.close(c.open(uri())[1]) for _ in range(10)][-1])


@scenario
def double_close(c):
    first = c.started()
    _code, second = c.open(uri())
    c.say("close the first", c.close(first))
    c.say("close the first again", c.close(first))
    c.say("echo of the second", *c.echo(second))
    c.say("close of the second", c.close(second))
    c.say("open", c.open(uri())[0])


@scenario
def session_close(c):
    handle = c.started()
    c.say("close session", c.control(7, ints(CDSP)))
    c.say("echo", *c.echo(handle))


@scenario
def exception(c):
    handle = c.started()
    c.say("exception", c.control(9, ints(CDSP)))
    c.say("echo", *c.echo(handle))


@scenario
def crash(c):
    handle = c.started()
    at, fd = c.block()
    c.map(fd, at)
    c.say("echo that kills the process", *c.echo(handle))
    c.say("echo", *c.echo(handle))
    c.say("map of what is mapped", c.map(fd, at))
    other_at, other_fd = c.block()
    c.say("map of something else", c.map(other_fd, other_at))
    c.say("unmap", c.unmap(fd, at))
    c.say("queue, create", c.queue()[0])
    c.say("unsigned again", c.unsigned(CDSP))
    code, _ = c.open(uri())
    c.say("open while the dead handle is open", code)
    c.say("close", c.close(handle))
    code, handle = c.open(uri())
    c.say("open after that", code)
    c.say("echo after that", *c.echo(handle))


@scenario
def restart(c):
    handle = c.started()
    c.say("echo into the restart", *c.echo(handle))
    c.say("echo", *c.echo(handle))
    c.say("open while it is away", c.open(uri())[0])
    c.say("close", c.close(handle))
    c.say("open at once", c.open(uri())[0])
    eventually(lambda: c.open(uri())[0] != AWAY, seconds=60)
    code, handle = c.open(uri())
    c.say("open later", code)
    c.say("echo later", *c.echo(handle) if code == 0 else (code,))


@scenario
def absent(c):
    c.unsigned()
    c.say("open", c.open(uri())[0])
    c.say("attribute 0", *c.info(0))
    c.say("attribute 6", *c.info(6))
    c.say("rpcmem", pointer(c.lib.rpcmem_alloc2(25, 1, 4096)))
    c.say("queue", c.queue()[0])


@scenario
def legacy(c):
    c.unsigned()
    handle = ct.c_uint32(0)
    code = c.lib.remote_handle_open(uri(), ct.byref(handle))
    c.say("remote_handle_open", code, "handle" if handle.value else "0")
    value, got = ct.c_uint64(5), ct.c_uint64(0)
    arguments = (RemoteArg * 2)()
    arguments[0].buffer = RemoteBuffer(ct.addressof(value), 8)
    arguments[1].buffer = RemoteBuffer(ct.addressof(got), 8)
    c.say("remote_handle_invoke", c.lib.remote_handle_invoke(handle, ECHO, arguments))
    c.say("remote_handle_close", c.lib.remote_handle_close(handle))
    c.say("remote_handle_open of nothing", c.lib.remote_handle_open(b"nothing", ct.byref(handle)))
