"""A handle of our code on the DSP, which knows whether it may be used.

The library does not: it answers success, and does nothing, for handles that are closed, dead or
garbage; and closing one twice ends the sessions of others.  So whether a call reaches the library
is decided here.  Everything runs on the session's own thread (`caller`).
Source: qualcomm/fastrpc v1.0.5, by running it.
"""

import os
from enum import Enum
from typing import Any

import numpy as np

from npurt.errors import DeviceLost, NpurtError
from npurt.hexagon.fastrpc import abi, codes, native_call
from npurt.hexagon.fastrpc.caller import refuse_fork
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.fastrpc.native_call import NativeCall
from npurt.hexagon.idl.method import Call


class State(Enum):
    """Of a handle.  Each is entered once, from the top down."""

    NEW = "not open yet"
    OPEN = "open"
    DEAD = "dead"  # the process behind it is gone, or never answered; still to be closed
    CLOSED = "closed"


class Invocation:
    """A marshalled call as the library takes it: made once, invoked any number of times."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.scalars = call.scalars
        # numpy, because cffi's from_buffer of a memoryview crashes the garbage collector
        self._buffers = [np.frombuffer(b, np.uint8) for b in (*call.inputs, *call.outputs)]
        self.arguments = abi.ffi().new("remote_arg[]", len(self._buffers))
        for argument, buffer in zip(self.arguments, self._buffers, strict=True):
            argument.buf.pv = abi.ffi().cast("void *", buffer.ctypes.data)
            argument.buf.nLen = buffer.nbytes


class Handle:
    """The handle of one module, opened at most once and closed at most once.

    Attributes:
        state: What may be done with it.
        why: Why it is dead.
    """

    def __init__(self, library: Library, uri: str) -> None:
        self.state = State.NEW
        self.why = ""
        self._library = library
        self._uri = uri
        self._invoke = library.c.remote_handle64_invoke
        self._number = 0
        self._process = os.getpid()

    def open(self) -> None:
        """Open the module; the first on a session starts the DSP process.

        Raises:
            NpurtError: See `codes.failed`.  The handle is closed.
        """
        self._require(State.NEW, codes.OPEN)
        number = abi.ffi().new("remote_handle64 *")
        code, errno = self._library.call(codes.OPEN, self._uri.encode(), number)
        if code or not number[0]:
            self.state = State.CLOSED
            # The error gets no name here: it would keep this frame, and the frame keeps the device.
            raise (code == codes.CONNREFUSED and self._library.unstarted()) or codes.failed(
                codes.OPEN, code, errno, self._uri
            )
        self._number = int(number[0])
        self.state = State.OPEN

    def invoke(self, invocation: Invocation) -> None:
        """Make a call.

        Raises:
            DeviceLost: The DSP process is gone: the handle is dead.
            DriverError: The call failed.
        """
        self.require_open(codes.INVOKE)
        code = self._invoke(self._number, invocation.scalars, invocation.arguments)
        if code:
            raise self.failed(invocation, code, abi.ffi().errno)

    def native(self, invocation: Invocation) -> NativeCall:
        """Return the native call that `invoke` makes.  Call `require_open` before it."""
        address = int(abi.ffi().cast("uintptr_t", self._invoke))
        arguments = native_call.ffi().cast(
            "void *", int(abi.ffi().cast("uintptr_t", invocation.arguments))
        )
        return NativeCall(address, self._number, invocation.scalars, arguments, invocation)

    def failed(self, invocation: Invocation, code: int, errno: int) -> NpurtError:
        """Return the error for what `invoke` of *invocation* returned; the handle may be dead."""
        error = codes.failed(codes.INVOKE, code, errno, invocation.call.method.name)
        if isinstance(error, DeviceLost):
            self.die(error.what)
        return error

    def require_open(self, call: str) -> None:
        """Raise unless *call* may be made: `DeviceLost` when the handle is dead."""
        if self.state is not State.OPEN or self._process != os.getpid():
            self._require(State.OPEN, call)

    def control(self, request: int, data: Any) -> tuple[int, int]:
        """Make a control request with a struct; return code and errno."""
        self.require_open("remote_handle64_control")
        size = abi.ffi().sizeof(data[0])
        return self._library.call("remote_handle64_control", self._number, request, data, size)

    def die(self, why: str) -> None:
        """Let no call through any more but one close."""
        if self.state is State.OPEN:
            self.state, self.why = State.DEAD, why

    def close(self) -> None:
        """Close once, dead or alive; errors of the library do not matter any more."""
        if self._process != os.getpid():
            return  # a fork's copy: the handle belongs to the parent
        if self.state in (State.OPEN, State.DEAD):
            self.state = State.CLOSED
            self._library.call("remote_handle64_close", self._number)
        self.state = State.CLOSED

    def _require(self, state: State, call: str) -> None:
        refuse_fork(self._process, call)
        if self.state is State.DEAD:
            raise DeviceLost(
                f"{call} refused: the handle is dead: {self.why}",
                remedy=codes.REOPEN,
                call=call,
                code=0x27,
            )
        if self.state is not state:
            raise NpurtError(
                f"{call} refused: the handle is {self.state.value}",
                remedy="open the device again",
            )
