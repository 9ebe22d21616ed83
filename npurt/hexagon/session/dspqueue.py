"""Send batches as messages of a dspqueue, which needs no kernel call per message.

On many boards dspqueue does not work: the DSP never reads the messages (qualcomm/fastrpc#377).  So
npurt uses it only after a test in a worker process (`probe`).  Every wait has a time limit, because
a read without a limit blocks for ever if the DSP restarts.
Source: qualcomm/fastrpc v1.0.5 inc/dspqueue.h, and tests with that version.
"""

import time
from functools import partial
from typing import Any

from npurt.errors import DeviceNotFound
from npurt.hexagon.fastrpc import abi, codes
from npurt.hexagon.fastrpc.abi import SessionRequest
from npurt.hexagon.fastrpc.lib import Library
from npurt.hexagon.fastrpc.rpcmem import U8, Block
from npurt.hexagon.session.session import Session
from npurt.hexagon.session.transport import Send, Transport, TransportName

SLICE_US = 1_000_000  # microseconds of one wait; waits are repeated until the deadline
EXPIRED = 0x0C
CLOSES = 100  # attempts to close a queue whose DSP process has ended
CLOSE_SECONDS = 0.01  # seconds between two attempts


class Queue(Transport):
    """A transport that sends batches through a queue and uses a `Session` for all other calls.

    Raises:
        DeviceNotFound: The library has no dspqueue.
        DriverError: The queue cannot be created; the session is closed.
    """

    name = TransportName.DSPQUEUE

    def __init__(self, session: Session) -> None:
        self.info, self.simulated = session.info, session.simulated
        self._session = session
        self._library = session.library
        try:
            self._queue = session.run(self._create, "dspqueue_create")
        except BaseException:
            session.close()
            raise

    def _create(self) -> Any:
        """Create the queue and have npurt's code serve it; runs on the session's thread."""
        if not self._library.has_dspqueue:
            raise DeviceNotFound(
                f"{self._library.path} has no dspqueue",
                remedy="unset NPURT_HEXAGON_TRANSPORT to use plain invoke",
            )
        ffi = abi.ffi()
        made, number = ffi.new("dspqueue_t *"), ffi.new("uint64_t *")
        no = ffi.NULL
        domain = self._session.slot.effective
        self._library.check("dspqueue_create", domain, 0, 0, 0, no, no, no, made)
        queue = made[0]
        self._session.before_closing(partial(_close, self._library, domain, queue))
        self._library.check("dspqueue_export", queue, number)
        self._session.call("queue", int(number[0]))
        self._session.call_before_closing("unqueue")
        return queue

    def allocate(self, nbytes: int) -> Block:
        """See `Session.allocate`."""
        return self._session.allocate(nbytes)

    def free(self, block: Block) -> None:
        """See `Session.free`."""
        self._session.free(block)

    def sync_for_device(self, block: Block) -> None:
        """See `Session.sync_for_device`."""
        self._session.sync_for_device(block)

    def sync_for_cpu(self, block: Block) -> None:
        """See `Session.sync_for_cpu`."""
        self._session.sync_for_cpu(block)

    def prepare(self, request: U8, reply: U8) -> Send:
        """Return a function that writes *request* and reads the answer into *reply*."""
        work = _Exchange(self._session, self._queue, request, reply)
        return partial(self._exchange, work)

    def _exchange(
        self, work: "_Exchange", written: Block | None = None, read: Block | None = None
    ) -> None:
        if written is not None:
            self.sync_for_device(written)
        self._session.run(work, "dspqueue_read")
        if read is not None:
            self.sync_for_cpu(read)

    def settle(self) -> None:
        """See `Session.settle`."""
        self._session.settle()

    def packets(self) -> int:
        """See `Session.packets`."""
        return self._session.packets()

    def close(self) -> None:
        """Close the queue and the session."""
        self._session.close()


def _close(library: Library, domain: int, queue: Any) -> None:
    """Close a queue; if that fails, end the DSP process and try again.

    If npurt's code on the DSP does not answer, it still has the queue open, and the queue cannot be
    closed.  An open queue keeps the session and its DSP process alive even without handles.
    Source: qualcomm/fastrpc src/dspqueue/dspqueue_cpu.c, dspqueue_close().
    """
    if not library.call("dspqueue_close", queue)[0]:
        return
    data = abi.ffi().new("remote_rpc_process_exception *", [domain])
    size = abi.ffi().sizeof(data[0])
    library.call("remote_session_control", SessionRequest.PROCESS_EXCEPTION, data, size)
    for _ in range(CLOSES):  # the library detects the end of the process with a delay
        if not library.call("dspqueue_close", queue)[0]:
            return
        time.sleep(CLOSE_SECONDS)


class _Exchange:
    """Writes a message and reads its answer; runs on the session's thread."""

    def __init__(self, session: Session, queue: Any, request: U8, reply: U8) -> None:
        ffi = abi.ffi()
        self._session = session
        self._library = session.library
        self._arrays = request, reply  # keeps the memory of the pointers below alive
        self._write = queue, 0, 0, ffi.NULL, request.nbytes, _bytes(request), SLICE_US
        self._flags, self._buffers, self._nbytes = (ffi.new("uint32_t *") for _ in range(3))
        read = reply.nbytes, self._nbytes, _bytes(reply), SLICE_US
        self._read = queue, self._flags, 0, self._buffers, ffi.NULL, *read

    def __call__(self) -> None:
        end = time.monotonic() + self._session.deadline
        self._until("dspqueue_write", self._write, end)
        self._until("dspqueue_read", self._read, end)

    def _until(self, call: str, arguments: tuple[Any, ...], end: float) -> None:
        """Repeat *call* while it expires, until *end*; any other failure ends the session."""
        self._session.require_open(call)
        while True:
            code, errno = self._library.call(call, *arguments)
            if not code:
                return
            if code != EXPIRED or time.monotonic() > end:
                break
        error = codes.failed(call, code, errno)
        self._session.die(error.what)
        raise error


def _bytes(array: U8) -> Any:
    return abi.ffi().cast("uint8_t *", array.ctypes.data)
