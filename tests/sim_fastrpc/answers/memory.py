"""Scenarios of memory: rpcmem, maps, and a program's registered buffers."""

import ctypes as ct
import os

from tests.sim_fastrpc.answers.client import CDSP, ECHO, pointer, scenario, uri

NO_HANDLE = 0x123456780
NO_ADDRESS = 0xE0000000  # of the DSP


@scenario
def rpcmem_first(c):
    at = c.lib.rpcmem_alloc2(25, 1, 4096)
    c.say("alloc2 as the first call", pointer(at))
    c.say("to_fd", c.fd(at))


@scenario
def rpcmem_initialised(c):
    c.lib.rpcmem_init()
    first = c.lib.rpcmem_alloc2(25, 1, 4096)
    c.say("first alloc2 after rpcmem_init", pointer(first), c.fd(first))
    second = c.lib.rpcmem_alloc2(25, 1, 4096)
    c.say("second alloc2", pointer(second), c.fd(second))


@scenario
def rpcmem_initialised_again(c):
    c.unsigned()
    at = c.lib.rpcmem_alloc2(25, 1, 4096)
    c.say("alloc2 after a control request", pointer(at), c.fd(at))
    c.lib.rpcmem_init()
    c.say("to_fd after rpcmem_init", c.fd(at))
    before = len(os.listdir("/proc/self/fd"))
    c.lib.rpcmem_free(at)
    closed = before - len(os.listdir("/proc/self/fd"))
    c.say("descriptors that rpcmem_free closes then", str(closed))
    c.lib.rpcmem_deinit()
    at = c.lib.rpcmem_alloc2(25, 1, 4096)
    c.say("alloc2 after rpcmem_deinit", pointer(at))


@scenario
def rpcmem(c):
    c.unsigned()
    for nbytes in (0, 1, 4096, 4097, -1, -(2**31), 2**31 - 1):
        at = c.lib.rpcmem_alloc(25, 1, nbytes)
        c.say(f"alloc {nbytes}", pointer(at))
        if nbytes == 2**31 - 1:
            c.lib.rpcmem_free(at)
    for nbytes in (0, 1, 2**31, 2**32, 2**62, 2**64 - 1):
        at = c.lib.rpcmem_alloc2(25, 1, nbytes)
        c.say(f"alloc2 {nbytes:#x}", pointer(at), c.fd(at))
        c.lib.rpcmem_free(at)
    at, _fd = c.block()
    c.say("to_fd of the middle", c.fd(at + 4096))
    c.say("to_fd of null", c.fd(None))
    c.lib.rpcmem_free(at + 4096)
    c.say("to_fd after a free of the middle", c.fd(at))
    c.lib.rpcmem_free(at)
    c.lib.rpcmem_free(at)
    c.lib.rpcmem_free(None)
    c.say("freed twice, and null", "survived")
    c.say("to_fd of what is freed", c.fd(at))
    at = c.lib.rpcmem_alloc(-7, 0xFFFFFFFF, 4096)
    c.say("heap -7, all flags", pointer(at))


@scenario
def early(c):
    """Make requests before there is a session."""
    c.unsigned()
    at, fd = c.block()
    c.say("fastrpc_mmap", c.map(fd, at))
    c.say("fastrpc_mmap, domain -1", c.map(fd, at, domain=-1))
    c.say("fastrpc_mmap, domain 32", c.map(fd, at, domain=32))
    c.say("fastrpc_mmap, domain 0", c.map(fd, at, domain=0))
    c.say("fastrpc_mmap, fd -1", c.map(-1, at))
    c.say("fastrpc_mmap, offset 1", c.map(fd, at, offset=1))
    c.say("fastrpc_munmap", c.unmap(fd, at))
    c.say("fastrpc_munmap, domain 32", c.unmap(fd, at, domain=32))
    got = ct.c_uint64(0)
    for name, flags, to in (("", 0, got), (", to null", 0, None), (", flags 99", 99, got)):
        out = None if to is None else ct.byref(to)
        c.say(f"remote_mem_map{name}", c.lib.remote_mem_map(CDSP, fd, flags, at, 8192, out))
    c.say("remote_mem_unmap", c.lib.remote_mem_unmap(CDSP, NO_ADDRESS, 8192))
    c.say("remote_mem_unmap of 0", c.lib.remote_mem_unmap(CDSP, 0, 8192))
    c.say("remote_mmap64", c.lib.remote_mmap64(fd, 0, at, 8192, ct.byref(got)))
    c.say("remote_mmap64, flags 1", c.lib.remote_mmap64(fd, 1, at, 8192, ct.byref(got)))
    c.say("remote_munmap64", c.lib.remote_munmap64(NO_ADDRESS, 8192))
    for name, handle in (("0", 0), ("-1", 2**64 - 1), ("garbage", NO_HANDLE)):
        c.say(f"invoke of {name}", *c.echo(handle))
    for name, handle in (("0", 0), ("-1", 2**64 - 1), ("garbage", NO_HANDLE)):
        c.say(f"close of {name}", c.close(handle))
    word = ct.c_int(77)
    code = c.lib.remote_handle64_control(NO_HANDLE, 4, ct.byref(word), 4)
    c.say("handle64_control of garbage", code)
    c.say("remote_set_mode", c.lib.remote_set_mode(0))
    c.say("fastrpc_async_get_status", c.lib.fastrpc_async_get_status(1, 0, ct.byref(word)))
    c.say("remote_handle_invoke of garbage", c.lib.remote_handle_invoke(0x1234, ECHO, None))
    c.say("remote_handle_close of garbage", c.lib.remote_handle_close(0x1234))


@scenario
def maps(c):
    handle = c.started()
    at, fd = c.block()
    for flags in range(18):
        code = c.map(fd, at, flags=flags)
        c.say(f"flags {flags}", code)
        if code == 0:
            c.unmap(fd, at)
    c.say("flags 0x10003", c.map(fd, at, flags=0x10003))
    _descriptors(c, at, fd)
    _addresses(c, at, fd)
    c.say("mapped", c.map(fd, at))
    c.lib.rpcmem_free(at)
    c.say("unmapped after rpcmem_free", c.unmap(fd, at))
    at, fd = c.block()
    c.map(fd, at)
    c.close(handle)
    c.say("unmapped after the session", c.unmap(fd, at))
    c.say("mapped after the session", c.map(fd, at))
    c.open(uri())
    c.say("mapped in the next session", c.map(fd, at))


def _descriptors(c, at, fd):
    c.say("mapped", c.map(fd, at))
    c.say("mapped again", c.map(fd, at))
    c.say("mapped in session 1", c.map(fd, at, domain=11))
    c.say("unmapped, wrong address and length", c.unmap(fd, None, 1))
    c.say("unmapped again", c.unmap(fd, at))
    c.say("0 bytes", c.map(fd, at, 0))
    c.unmap(fd, at, 0)
    c.say("more bytes than there are", c.map(fd, at, 1 << 20))
    c.unmap(fd, at, 0)
    c.say("no address", c.map(fd, None))
    c.unmap(fd, None, 0)
    c.say("fd of nothing", c.map(999, at))
    null = os.open("/dev/null", os.O_RDWR)
    c.say("fd of /dev/null", c.map(null, at, 4096))
    c.say("domain -1", c.map(fd, at, domain=-1))
    c.say("domain -1, unmapped", c.unmap(fd, at, domain=-1))
    c.say("domain -2", c.map(fd, at, domain=-2))


def _addresses(c, at, fd):
    got = ct.c_uint64(0)
    for flags in range(6):
        code = c.lib.remote_mem_map(CDSP, fd, flags, at, 8192, ct.byref(got))
        c.say(f"remote_mem_map, flags {flags}", code)
    c.say("remote_mem_unmap", c.lib.remote_mem_unmap(CDSP, NO_ADDRESS, 8192))
    got.value = 0
    code = c.lib.remote_mmap64(fd, 0, at, 8192, ct.byref(got))
    c.say("remote_mmap64", code, "address" if got.value else "0")
    c.say("remote_munmap64", c.lib.remote_munmap64(got.value, 8192))
    c.say("remote_munmap64 again", c.lib.remote_munmap64(got.value, 8192))


@scenario
def registers(c):
    c.unsigned()
    _at, fd = c.block()
    for name, number, nbytes in (
        ("right", fd, 8192),
        ("0 bytes", fd, 0),
        ("-1 bytes", fd, -1),
        ("fd -1", -1, 8192),
        ("fd of nothing", 999, 8192),
    ):
        c.say(f"register_fd, {name}", pointer(c.lib.remote_register_fd(number, nbytes)))
    c.say("register_fd2, too many bytes", pointer(c.lib.remote_register_fd2(fd, 1 << 20)))
    register = c.lib.remote_register_dma_handle
    for name, number, nbytes in (
        ("right", fd, 8192),
        ("again", fd, 8192),
        ("0 bytes", fd, 0),
        ("fd -1", -1, 8192),
        ("fd of nothing", 999, 1),
    ):
        c.say(f"register_dma_handle, {name}", register(number, nbytes))
    for attributes in (1, 16, 32):
        code = c.lib.remote_register_dma_handle_attr(fd, 8, attributes)
        c.say(f"register_dma_handle_attr {attributes}", code)
    code = 0
    for number in range(1000, 1300):
        code = code or register(number, 8)
    c.say("300 dma handles", code)
    own = ct.create_string_buffer(4096)
    c.lib.remote_register_buf(own, 4096, fd)
    c.lib.remote_register_buf(own, 4096, -1)
    c.lib.remote_register_buf(own, 4096, -1)
    c.say("buffer registered, and taken back twice", "survived")


@scenario
def register_size(c):
    c.unsigned()
    own = ct.create_string_buffer(4096)
    _at, fd = c.block()
    c.lib.remote_register_buf(own, 4096, fd)
    c.lib.remote_register_buf(own, 2048, -1)
    c.say("taken back with another size", "survived")
