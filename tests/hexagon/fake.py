"""Compile and load `fake_rpc.c`, a fake FastRPC library, and set its switches."""

from npurt.hexagon.fastrpc.handle import Invocation
from npurt.hexagon.fastrpc.lib import load
from npurt.hexagon.idl.interface import interface
from tools.build.host_code import build_library, host
from tools.build.zig import ROOT

SOURCE = ROOT / "tests/hexagon/fake_rpc.c"
CONTROLS = """
void fake_reset(void);
void fake_answer(const char *call, int code, int error, int times);
void fake_delay(const char *call, long ms);
void fake_release(const char *call);
int fake_count(const char *call);
const char *fake_opened(void);
"""


def compile_fake(folder, *, defines=(), name="libfake_rpc.so"):
    return build_library(host(), folder / name, defines=defines, sources=[SOURCE])


class Fake:
    """The fake library and its switches."""

    def __init__(self, path):
        from cffi import FFI

        ffi = FFI()
        ffi.cdef(CONTROLS)
        self.path = path
        self._ffi = ffi
        self._c = ffi.dlopen(str(path))
        self.library = load([str(path)])

    def answer(self, call, code, errno=0, times=1):
        signed = code - (1 << 32) if code >> 31 else code
        self._c.fake_answer(call.encode(), signed, errno, times)

    def delay(self, call, seconds):
        """Make later calls of *call* last this long, or until `release`."""
        self._c.fake_delay(call.encode(), int(seconds * 1000))

    def release(self, call):
        self._c.fake_release(call.encode())

    def count(self, call):
        return self._c.fake_count(call.encode())

    @property
    def opened(self):
        return self._ffi.string(self._c.fake_opened()).decode()

    def reset(self):
        self._c.fake_reset()


def echo():
    """Return a call that a skel answers with a copy of the call's input."""
    return Invocation(interface().method("echo").pack(5))
