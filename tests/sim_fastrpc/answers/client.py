"""A client of libcdsprpc's bare ABI that prints one line per answer.

The client opens npurt's skel for v68 in DSP_LIBRARY_PATH, and uses nothing else of npurt.  A line
is `name: code [values]`; codes are in hex, pointers are `null`, `-1` or `some`.
"""

import ctypes as ct
import sys

from tests.sim_fastrpc.rpc import PUBLIC, UNSIGNED, RemoteArg, RemoteBuffer

CDSP = 3
SKEL = "file:///libnpurt_skel_v68.so?npurt_skel_handle_invoke&_modver=1.0&_idlver=1.0.0"
ECHO = 2 << 24 | 1 << 16 | 1 << 8
MASK = 0x9E3779B97F4A7C15  # of echo, idl/npurt.idl

INT, WORD, LONG, AT, SIZE = ct.c_int, ct.c_uint32, ct.c_uint64, ct.c_void_p, ct.c_size_t
ARGUMENTS = {
    "remote_handle64_control": (LONG, WORD, AT, WORD),
    "remote_handle_control": (WORD, AT, WORD),
    "remote_session_control": (WORD, AT, WORD),
    "remote_handle_open": (ct.c_char_p, AT),
    "remote_handle_invoke": (WORD, WORD, AT),
    "remote_handle_close": (WORD,),
    "remote_mem_map": (INT, INT, INT, LONG, SIZE, AT),
    "remote_mem_unmap": (INT, LONG, SIZE),
    "remote_mmap64": (INT, WORD, LONG, ct.c_int64, AT),
    "remote_munmap64": (LONG, ct.c_int64),
    "remote_register_buf": (AT, INT, INT),
    "remote_register_dma_handle": (INT, WORD),
    "remote_register_dma_handle_attr": (INT, WORD, WORD),
    "dspqueue_create": (INT, WORD, WORD, WORD, AT, AT, AT, AT),
    "dspqueue_write": (AT, WORD, WORD, AT, WORD, AT, WORD),
    "dspqueue_write_noblock": (AT, WORD, WORD, AT, WORD, AT),
    "dspqueue_write_early_wakeup_noblock": (AT, WORD, WORD),
    "dspqueue_read": (AT, AT, WORD, AT, AT, WORD, AT, AT, WORD),
    "dspqueue_read_noblock": (AT, AT, WORD, AT, AT, WORD, AT, AT),
    "fastrpc_async_get_status": (LONG, INT, AT),
}
POINTERS = {"remote_register_fd": (INT, INT), "remote_register_fd2": (INT, SIZE)}


SCENARIOS = {}  # by name; each runs in a separate process, because some end the process


def scenario(function):
    """Add a scenario, a function of a client, to `SCENARIOS`."""
    SCENARIOS[function.__name__] = function
    return function


def ints(*values):
    return (INT * len(values))(*values)


def pointer(value):
    """Return an address in the form that is printed; actual addresses differ between runs."""
    return "null" if not value else "-1" if value == 2**64 - 1 else "some"


def uri(session=0, domain="cdsp"):
    return f"{SKEL}&_dom={domain}&_session={session}".encode()


class Client:
    """The library, and shorter functions to call it."""

    def __init__(self, path):
        self.lib = ct.CDLL(path)
        for name, (result, *arguments) in PUBLIC.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        for name, arguments in ARGUMENTS.items():
            getattr(self.lib, name).argtypes = arguments
        for name, arguments in POINTERS.items():
            getattr(self.lib, name).argtypes = arguments
            getattr(self.lib, name).restype = AT

    def say(self, name, code, *values):
        shown = code if isinstance(code, str) else hex(code & 0xFFFFFFFF)
        listed = f" [{', '.join(map(str, values))}]" if values else ""
        sys.stdout.write(f"{name}: {shown}{listed}\n")
        sys.stdout.flush()  # the next call may end the process

    def control(self, request, data):
        return self.lib.remote_session_control(request, ct.byref(data), ct.sizeof(data))

    def unsigned(self, domain=-1, on=1):
        return self.control(UNSIGNED, ints(domain, on))

    def open(self, text):
        """Return (code, handle)."""
        handle = LONG(0)
        return self.lib.remote_handle64_open(text, ct.byref(handle)), handle.value

    def started(self):
        """Return the handle of a skel in an unsigned process."""
        self.unsigned()
        code, handle = self.open(uri())
        if code:
            self.say("open", code)
            sys.exit(1)
        return handle

    def close(self, handle):
        return self.lib.remote_handle64_close(handle)

    def echo(self, handle):
        """Return (code, state of the answer)."""
        given, got = LONG(5), LONG(0)
        arguments = (RemoteArg * 2)()
        arguments[0].buffer = RemoteBuffer(ct.addressof(given), 8)
        arguments[1].buffer = RemoteBuffer(ct.addressof(got), 8)
        code = self.lib.remote_handle64_invoke(handle, ECHO, arguments)
        answers = {given.value ^ MASK: "right", 0: "untouched"}
        return code, answers.get(got.value, "wrong")

    def block(self, nbytes=8192):
        """Return (address, descriptor) of rpcmem."""
        at = self.lib.rpcmem_alloc2(25, 1, nbytes)
        return at, self.lib.rpcmem_to_fd(at)

    def fd(self, at):
        """Return whether there is a descriptor for an address."""
        return "fd" if self.lib.rpcmem_to_fd(at) >= 0 else "-1"

    def map(self, fd, at, nbytes=8192, flags=3, domain=CDSP, offset=0):
        return self.lib.fastrpc_mmap(domain, fd, at, offset, nbytes, flags)

    def unmap(self, fd, at, nbytes=8192, domain=CDSP):
        return self.lib.fastrpc_munmap(domain, fd, at, nbytes)

    def info(self, attribute, domain=CDSP):
        """Return (code, value) of a capability."""
        data = (WORD * 3)(domain, attribute, 77)
        return self.lib.remote_handle_control(2, data, 12), data[2]

    def queue(self, domain=CDSP, flags=0, request=0, answer=0):
        """Return (code, queue)."""
        queue = AT(77)
        arguments = domain, flags, request, answer, None, None, None, ct.byref(queue)
        return self.lib.dspqueue_create(*arguments), queue
