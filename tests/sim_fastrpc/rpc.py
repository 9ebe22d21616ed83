"""A program's view of libcdsprpc: declarations from its public headers, without code of npurt."""

import ctypes as c
import struct
from pathlib import Path

CDSP = 3
UNSIGNED, CLOSE_SESSION, EXCEPTION = 2, 7, 9  # requests of remote_session_control
LATE = 0xC
BAD_PARAMETER = 0xE
NO_SUCH_MAP = 0x48
DELAYED = 3  # flags of fastrpc_mmap
MAPPED = 2
FOREVER = 0xFFFFFFFF

# Methods of skels/probe.c.
(INVERT, ABOUT, SUM_MAPPED, SUM_GOT, KEEP, TOUCH_KEPT, DROP_KEPT, USE_VTCM, VOTE, STACK, HEAP,
 PRINT, WORK, MACHINE, SLEEP, CRASH, STATUS) = range(2, 19)  # fmt: skip


class RemoteBuffer(c.Structure):
    _fields_ = (("at", c.c_void_p), ("bytes", c.c_size_t))


class RemoteDma(c.Structure):
    _fields_ = (("fd", c.c_int32), ("offset", c.c_uint32))


class RemoteArg(c.Union):
    _fields_ = (("buffer", RemoteBuffer), ("handle", c.c_uint64), ("dma", RemoteDma))


class QueueBuffer(c.Structure):
    _fields_ = (
        *((name, c.c_uint32) for name in ("fd", "size", "offset", "flags")),
        ("address", c.c_uint64),
    )


CALLBACK = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_void_p)
BUFFERS, WORD = c.POINTER(QueueBuffer), c.POINTER(c.c_uint32)

# Functions that the real library has, too.
PUBLIC = {
    "remote_handle64_open": (c.c_int, c.c_char_p, c.POINTER(c.c_uint64)),
    "remote_handle64_invoke": (c.c_int, c.c_uint64, c.c_uint32, c.c_void_p),
    "remote_handle64_close": (c.c_int, c.c_uint64),
    "remote_handle64_control": (c.c_int, c.c_uint64, c.c_uint32, c.c_void_p, c.c_uint32),
    "remote_handle_control": (c.c_int, c.c_uint32, c.c_void_p, c.c_uint32),
    "remote_session_control": (c.c_int, c.c_uint32, c.c_void_p, c.c_uint32),
    "rpcmem_alloc": (c.c_void_p, c.c_int, c.c_uint32, c.c_int),
    "rpcmem_alloc2": (c.c_void_p, c.c_int, c.c_uint32, c.c_size_t),
    "rpcmem_free": (None, c.c_void_p),
    "rpcmem_to_fd": (c.c_int, c.c_void_p),
    "remote_register_buf_attr2": (None, c.c_void_p, c.c_size_t, c.c_int, c.c_int),
    "fastrpc_mmap": (c.c_int, c.c_int, c.c_int, c.c_void_p, c.c_int, c.c_size_t, c.c_uint32),
    "fastrpc_munmap": (c.c_int, c.c_int, c.c_int, c.c_void_p, c.c_size_t),
    "dspqueue_create": (c.c_int, c.c_int, *(c.c_uint32,) * 3, CALLBACK, CALLBACK, c.c_void_p,
                        c.POINTER(c.c_void_p)),
    "dspqueue_close": (c.c_int, c.c_void_p),
    "dspqueue_export": (c.c_int, c.c_void_p, c.POINTER(c.c_uint64)),
    "dspqueue_write": (c.c_int, c.c_void_p, c.c_uint32, c.c_uint32, BUFFERS, c.c_uint32,
                       c.c_char_p, c.c_uint32),
    "dspqueue_read": (c.c_int, c.c_void_p, WORD, c.c_uint32, WORD, BUFFERS, c.c_uint32, WORD,
                      c.c_char_p, c.c_uint32),
    "dspqueue_peek": (c.c_int, c.c_void_p, WORD, WORD, WORD, c.c_uint32),
    "dspqueue_get_stat": (c.c_int, c.c_void_p, c.c_int, c.POINTER(c.c_uint64)),
}  # fmt: skip
SIMULATOR = {
    "npurt_sim_control": (c.c_int, c.c_char_p),
    "npurt_sim_error": (c.c_size_t, c.c_char_p, c.c_size_t),
    "npurt_sim_log": (c.c_size_t, c.c_int, c.c_char_p, c.c_size_t),
    "npurt_sim_packets": (c.c_uint64, c.c_uint64),
    "npurt_sim_total_packets": (c.c_uint64, c.c_int),
    "npurt_sim_process": (c.c_int, c.c_int),
    "npurt_sim_syncs": (c.c_uint64, c.POINTER(c.c_uint64)),
    "ioctl": (c.c_int, c.c_int, c.c_ulong, c.c_void_p),
}


def uri(name, *, rest="&_dom=cdsp", symbol=None):
    """Return the URI of a skel of these tests."""
    return f"file:///lib{name}_skel.so?{symbol or name}_skel_handle_invoke&_modver=1.0{rest}"


def words(*values):
    """Return 32-bit words as bytes."""
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


class Rpc:
    """The library: its functions, and shorter ways to call them."""

    def __init__(self, path: Path):
        self.path = path
        library = c.CDLL(str(path), use_errno=True)
        for name, (result, *arguments) in {**PUBLIC, **SIMULATOR}.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def control(self, text):
        """Change the simulator's settings."""
        assert self.npurt_sim_control(text.encode()) == 0, text

    def ask_unsigned(self, domain=CDSP, enable=1):
        data = (c.c_int * 2)(domain, enable)
        return self.remote_session_control(UNSIGNED, data, 8)

    def close_session(self, domain=CDSP):
        """End a session without open handles."""
        return self.remote_session_control(CLOSE_SESSION, c.byref(c.c_int(domain)), 4)

    def end_process(self, domain=CDSP):
        """End the DSP's process by an exception."""
        return self.remote_session_control(EXCEPTION, c.byref(c.c_int(domain)), 4)

    def open(self, name, **parts):
        """Return (code, handle)."""
        handle = c.c_uint64(0)
        code = self.remote_handle64_open(uri(name, **parts).encode(), c.byref(handle))
        return code & 0xFFFFFFFF, handle.value

    def opened(self, name, **parts):
        """Open a skel, check the code, and return its handle."""
        code, handle = self.open(name, **parts)
        assert code == 0, hex(code)
        return handle

    def close(self, handle):
        return self.remote_handle64_close(handle) & 0xFFFFFFFF

    def call(self, handle, method, given=None, capacity=0):
        """Return (code, the method's output of *capacity* bytes).

        *given* and *capacity* may be (address, bytes), of memory to pass as it is.
        """
        arguments = (RemoteArg * 2)()
        holders, counts = [], [0, 0]
        for i, value in enumerate((given, capacity)):
            if not value:
                continue
            if isinstance(value, tuple):
                at, nbytes = value
            else:
                data = value if i == 0 else bytes(value)
                holders.append(c.create_string_buffer(data, len(data)))
                at, nbytes = c.addressof(holders[-1]), len(data)
            arguments[sum(counts)].buffer = RemoteBuffer(at, nbytes)
            counts[i] = 1
        scalars = method << 24 | counts[0] << 16 | counts[1] << 8
        code = self.remote_handle64_invoke(handle, scalars, arguments) & 0xFFFFFFFF
        returned = holders[-1].raw if capacity and not isinstance(capacity, tuple) else b""
        return code, returned

    def call_words(self, handle, method, *given, capacity=0):
        """Return (code, words) for a method of words."""
        code, returned = self.call(handle, method, words(*given), 4 * capacity)
        return code, struct.unpack(f"<{capacity}I", returned)

    def error(self):
        text = c.create_string_buffer(2000)
        self.npurt_sim_error(text, len(text))
        return text.value.decode()

    def log(self, domain=CDSP):
        text = c.create_string_buffer(70000)
        self.npurt_sim_log(domain, text, len(text))
        return text.value.decode()

    def packets(self, handle):
        return self.npurt_sim_packets(handle)

    def process(self, domain=CDSP):
        return self.npurt_sim_process(domain)


class Block:
    """A block of rpcmem."""

    def __init__(self, rpc, nbytes):
        self.rpc, self.nbytes = rpc, nbytes
        self.at = rpc.rpcmem_alloc(25, 1, nbytes)
        assert self.at not in (None, 2**64 - 1)
        self.fd = rpc.rpcmem_to_fd(self.at)
        self.view = (c.c_uint8 * nbytes).from_address(self.at)

    def map(self, flags=DELAYED, domain=CDSP):
        return self.rpc.fastrpc_mmap(domain, self.fd, self.at, 0, self.nbytes, flags)

    def unmap(self, domain=CDSP):
        return self.rpc.fastrpc_munmap(domain, self.fd, self.at, self.nbytes)

    def free(self):
        self.rpc.rpcmem_free(self.at)
