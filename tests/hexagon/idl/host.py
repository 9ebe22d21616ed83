"""The generated skel of wire.idl, compiled for this machine and called as FastRPC would.

As a program, it reads calls from standard input and makes them with every buffer between two pages
that cannot be accessed: a read or write outside a buffer ends the process.
"""

import json
import mmap
import subprocess
import sys
from pathlib import Path

import cffi

from tests.limits import HANG_SECONDS

FOLDER = Path(__file__).parent
CDEF = """
typedef struct { void *pv; size_t nLen; } remote_buf;
typedef struct { int32_t fd; uint32_t offset; } remote_dma_handle;
typedef union { remote_buf buf; uint32_t h; uint64_t h64; remote_dma_handle dma; } remote_arg;
int t_skel_handle_invoke(uint64_t h, uint32_t sc, remote_arg *args);
void *mmap(void *addr, size_t length, int prot, int flags, int fd, int64_t offset);
int mprotect(void *addr, size_t len, int prot);
int munmap(void *addr, size_t length);
"""
PROT_NONE = 0
ffi = cffi.FFI()
ffi.cdef(CDEF)
# Undefined behaviour traps; -ffreestanding, as on the DSP.
FLAGS = (
    "-std=c11", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
    "-ffreestanding", "-fsanitize=undefined", "-fsanitize-trap=undefined",
)  # fmt: skip


def build(folder, idl=FOLDER / "wire.idl", sources=(FOLDER / "wire_impl.c",)):
    """Generate and compile the skel of *idl* with *sources*; return the library."""
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "npurt.hexagon.idl", idl, "--c", folder], check=True, timeout=HANG_SECONDS
    )
    library = folder / "skel.so"
    skels = folder.glob("*_skel.c")
    command = [*python, "ziglang", "cc", *FLAGS, "-I", folder, *skels, *sources, "-o", library]
    subprocess.run(command, check=True, timeout=HANG_SECONDS)
    return library


def arguments(call, place):
    """Return the argument array of *call*; *place* gives the address of a buffer."""
    bufs = [*call.inputs, *call.outputs]
    handles = [*call.handles_in, *call.handles_out]
    args = ffi.new("remote_arg[]", len(bufs) + len(handles) + 1)
    for arg, buf in zip(args, bufs, strict=False):
        arg.buf.pv, arg.buf.nLen = place(buf), len(buf)
    for i, handle in enumerate(handles):
        args[len(bufs) + i].dma.fd = handle.fd
        args[len(bufs) + i].dma.offset = handle.offset
    return args


def invoke(lib, call, handle=0):
    """Make *call*; return what the skel returns."""
    held = []

    def place(buf):
        held.append(ffi.from_buffer(buf))
        return held[-1]

    args = arguments(call, place)
    return lib.t_skel_handle_invoke(handle, call.scalars, args) & 0xFFFFFFFF


class Fenced:
    """Copies of buffers, each ending where an untouchable page begins."""

    def __init__(self):
        self.libc = ffi.dlopen(None)
        self.maps = []

    def place(self, data, writable):
        """Return the address of a copy of *data*; read-only unless *writable*."""
        page = mmap.PAGESIZE
        inner = -(-max(len(data), 1) // page) * page
        base = self.libc.mmap(
            ffi.NULL, inner + 2 * page, PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        self.maps.append((base, inner + 2 * page))
        start = ffi.cast("char *", base) + page
        assert self.libc.mprotect(start, inner, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        address = start + (inner - len(data))
        ffi.memmove(address, data, len(data))
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        assert self.libc.mprotect(start, inner, prot) == 0
        return address

    def free(self):
        """Unmap all copies."""
        for base, size in self.maps:
            self.libc.munmap(base, size)
        self.maps.clear()


def main():
    """Make the calls of standard input; print the codes."""
    lib = ffi.dlopen(sys.argv[1])
    fenced = Fenced()
    codes = []
    for number, (scalars, ins, outs, handles) in enumerate(json.load(sys.stdin)):
        args = [(fenced.place(bytes.fromhex(data), False), len(data) // 2) for data in ins]
        args += [(fenced.place(bytes(size), True), size) for size in outs]
        array = ffi.new("remote_arg[]", len(args) + len(handles) + 1)
        for i, (address, size) in enumerate(args):
            array[i].buf.pv, array[i].buf.nLen = address, size
        for i, fd in enumerate(handles):
            array[len(args) + i].dma.fd = fd
        sys.stderr.write(f"{number}\n")  # if the process ends here, the last number names the call
        sys.stderr.flush()
        codes.append(lib.t_skel_handle_invoke(0, scalars, array) & 0xFFFFFFFF)
        fenced.free()
    sys.stdout.write(json.dumps(codes))


if __name__ == "__main__":
    main()
