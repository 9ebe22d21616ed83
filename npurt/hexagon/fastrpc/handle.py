"""A handle of a module on the DSP; it checks its state before each call.

The library does not check handles.  For a closed, dead or invalid handle it does nothing and
returns success; if a handle is closed twice, the library ends other sessions.  So `Handle` decides
whether a call reaches the library.  All methods run on the session's thread (`caller`).
Source: tests with qualcomm/fastrpc v1.0.5.
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


class HandleState(Enum):
    """The state of a handle; a handle enters each state at most once, in this order."""

    NEW = "not open yet"
    OPEN = "open"
    DEAD = "dead"  # the DSP process is gone or did not answer; the handle must still be closed
    CLOSED = "closed"


class Invocation:
    """A marshalled call in the form of the library; it can be invoked any number of times."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.scalars = call.scalars
        # numpy arrays, because cffi's from_buffer of a memoryview crashes the garbage collector
        self._buffers = [np.frombuffer(b, np.uint8) for b in (*call.inputs, *call.outputs)]
        self.arguments = abi.ffi().new("remote_arg[]", len(self._buffers))
        for argument, buffer in zip(self.arguments, self._buffers, strict=True):
            argument.buf.pv = abi.ffi().cast("void *", buffer.ctypes.data)
            argument.buf.nLen = buffer.nbytes


class Handle:
    """The handle of one module, opened at most once and closed at most once.

    Attributes:
        state: The state, which decides whether calls are allowed.
        why: The reason for the state DEAD.
    """

    def __init__(self, library: Library, uri: str) -> None:
        self.state = HandleState.NEW
        self.why = ""
        self._library = library
        self._uri = uri
        self._invoke = library.c.remote_handle64_invoke
        self._number = 0
        self._process = os.getpid()

    def open(self) -> None:
        """Open the module; the first module of a session starts the DSP process.

        Raises:
            NpurtError: The module cannot be opened; see `codes.failed`.  The handle is closed.
        """
        self._require(HandleState.NEW, codes.OPEN)
        number = abi.ffi().new("remote_handle64 *")
        code, errno = self._library.call(codes.OPEN, self._uri.encode(), number)
        if code or not number[0]:
            self.state = HandleState.CLOSED
            # Do not assign the error to a variable: its traceback refers to this frame, and the
            # frame would refer to the error and to the device, which would not be freed.
            raise (code == codes.CONNREFUSED and self._library.unstarted()) or codes.failed(
                codes.OPEN, code, errno, self._uri
            )
        self._number = int(number[0])
        self.state = HandleState.OPEN

    def invoke(self, invocation: Invocation) -> None:
        """Make a call.

        Raises:
            DeviceLost: The DSP process is gone; the handle is now dead.
            DriverError: The call failed.
        """
        self.require_open(codes.INVOKE)
        code = self._invoke(self._number, invocation.scalars, invocation.arguments)
        if code:
            raise self.failed(invocation, code, abi.ffi().errno)

    def native(self, invocation: Invocation) -> NativeCall:
        """Return the native call that `invoke` makes; call `require_open` before each use."""
        address = int(abi.ffi().cast("uintptr_t", self._invoke))
        arguments = native_call.ffi().cast(
            "void *", int(abi.ffi().cast("uintptr_t", invocation.arguments))
        )
        return NativeCall(address, self._number, invocation.scalars, arguments, invocation)

    def failed(self, invocation: Invocation, code: int, errno: int) -> NpurtError:
        """Return the error for *code*, returned by *invocation*; the handle may become dead."""
        error = codes.failed(codes.INVOKE, code, errno, invocation.call.method.name)
        if isinstance(error, DeviceLost):
            self.die(error.what)
        return error

    def require_open(self, call: str) -> None:
        """Raise if *call* cannot be made: DeviceLost if the handle is dead, else NpurtError."""
        if self.state is not HandleState.OPEN or self._process != os.getpid():
            self._require(HandleState.OPEN, call)

    def control(self, request: int, data: Any) -> tuple[int, int]:
        """Make a control request with a struct; return code and errno."""
        self.require_open("remote_handle64_control")
        size = abi.ffi().sizeof(data[0])
        return self._library.call("remote_handle64_control", self._number, request, data, size)

    def die(self, why: str) -> None:
        """Refuse all further calls except one `close`."""
        if self.state is HandleState.OPEN:
            self.state, self.why = HandleState.DEAD, why

    def close(self) -> None:
        """Close the handle if it is open or dead; ignore errors of the library."""
        if self._process != os.getpid():
            return  # this process is a fork: the handle belongs to the parent
        if self.state in (HandleState.OPEN, HandleState.DEAD):
            self.state = HandleState.CLOSED
            self._library.call("remote_handle64_close", self._number)
        self.state = HandleState.CLOSED

    def _require(self, state: HandleState, call: str) -> None:
        refuse_fork(self._process, call)
        if self.state is HandleState.DEAD:
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
