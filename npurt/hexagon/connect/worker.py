"""Run a session in a worker process, which can be killed if the DSP does not answer.

Parent and worker exchange packets over a socket.  The parent's packet is a number, a letter and
arguments.  The worker's answer is the same number, then "+" and a result, or "-" and an error as
JSON.  The parent ignores answers with other numbers: they belong to packets whose answers it did
not read because of Ctrl-C.  The worker allocates the blocks.  It numbers a block by the file
descriptor in its own process, and sends the parent a copy of the descriptor.

    o a `Connection`, as JSON -> [info, simulated, the worker's version of npurt], as JSON
    a nbytes, in decimal      -> [number of the block, nbytes], as JSON, and its descriptor
    m [method of `Transport`, number of the block], as JSON -> nothing
    x the numbers of the written and the read block (-1: none) as int32, and the batch
                              -> the reply, and 8 bytes: instruction packets executed so far
    n                         -> nothing; earlier packets are finished

The parent holds one end of a pipe.  A thread of the worker waits until this end is closed, and then
ends the worker at once.
"""

import contextlib
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from npurt import errors
from npurt.errors import DeviceFull, DeviceLost, DeviceTimeout, DriverError, NpurtError
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.fastrpc import codes
from npurt.hexagon.fastrpc.caller import refuse_fork
from npurt.hexagon.fastrpc.rpcmem import U8, Block
from npurt.hexagon.session import messages
from npurt.hexagon.session.session import OPENING_SECONDS
from npurt.hexagon.session.transport import Info, Send, Transport, TransportName
from npurt.version import __version__

Answer = tuple[bytes, list[int]]  # the result, and file descriptors

NUMBER_BYTES = 4
_BLOCKS = struct.Struct("<2i")
MAX_BYTES = 1 << 17  # maximum size of a packet; a batch of 256 ops has 20 KB
_START = """
import sys
sys.path[:] = {path!r}
from npurt.hexagon.connect.worker import main
main({fd}, {life})
"""


class Worker(Transport):
    """A `Transport` in the parent that sends its calls to a worker process.

    Args:
        connection: The settings with which the worker opens its session.
        opening: Seconds that the worker may need to open the session.

    Raises:
        NpurtError: The session cannot be opened; see `Session.open`.
    """

    name = TransportName.WORKER

    def __init__(self, connection: Connection, opening: float = 2 * OPENING_SECONDS) -> None:
        self._parent = os.getpid()
        self._deadline = connection.deadline
        self._number = 0  # of the last packet
        self._interrupted = False  # True: the answer to the last packet may still come
        self._packets = 0
        self._end, self._process, life = _spawn()
        owned = self._end, self._process, life
        self._finalizer = weakref.finalize(self, _reap, self._parent, *owned)
        try:
            answer = self._ask(b"o" + json.dumps(asdict(connection)).encode(), opening)
            info, self.simulated, version = json.loads(answer)
            self.info = Info(*info)
            _require_same_npurt(version)
        except BaseException:
            self.close()
            raise

    @property
    def process(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    def allocate(self, nbytes: int) -> Block:
        """Return memory that the worker has allocated and mapped; see `Transport.allocate`."""
        fds: list[int] = []
        try:
            number, size = json.loads(self._ask(b"a%d" % nbytes, self._deadline, fds))
            return Block(np.frombuffer(mmap.mmap(fds[0], size), np.uint8), number)
        except OSError as error:
            raise DeviceFull(
                f"cannot map {nbytes} bytes that are shared with the DSP: {error}",
                remedy="close other programs, or use a smaller model",
                call="mmap",
                code=error.errno or 0,
            ) from error
        finally:
            _close_all(fds)

    def free(self, block: Block) -> None:
        """Have the worker unmap *block*."""
        self._on_block("free", block)

    def sync_for_device(self, block: Block) -> None:
        """Have the worker synchronise *block*; all processes use the same caches."""
        self._on_block("sync_for_device", block)

    def sync_for_cpu(self, block: Block) -> None:
        """Have the worker synchronise *block*, as in `sync_for_device`."""
        self._on_block("sync_for_cpu", block)

    def _on_block(self, method: str, block: Block) -> None:
        self._ask(b"m" + json.dumps([method, block.fd]).encode(), self._deadline)

    def prepare(self, request: U8, reply: U8) -> Send:
        """Return a function that has the worker send *request*; see `Transport.prepare`."""
        return partial(self._exchange, request, reply)

    def _exchange(
        self, request: U8, reply: U8, written: Block | None = None, read: Block | None = None
    ) -> None:
        numbers = (-1 if block is None else block.fd for block in (written, read))
        packet = b"x" + _BLOCKS.pack(*numbers) + request.tobytes()
        answer = self._ask(packet, self._deadline)
        reply[:] = np.frombuffer(answer, np.uint8, reply.nbytes)
        self._packets = int.from_bytes(answer[reply.nbytes :], "little")

    def packets(self) -> int:
        """Return the count that came with the last reply of the worker."""
        return self._packets

    def settle(self) -> None:
        """Wait until the worker has finished an interrupted call."""
        if self._interrupted:
            self._ask(b"n", self._deadline)

    def close(self) -> None:
        """End the worker, and kill it if it does not end in time.  A second call does nothing."""
        self._finalizer()

    def _ask(self, packet: bytes, seconds: float, fds: list[int] | None = None) -> bytes:
        """Send a packet and return its answer; append the answer's file descriptors to *fds*."""
        refuse_fork(self._parent, "a call to the worker")
        if not self._finalizer.alive:
            raise NpurtError("the worker is closed", remedy="open the device again")
        self._interrupted = True
        self._number = (self._number + 1) % (1 << 32)
        number = self._number.to_bytes(NUMBER_BYTES, "little")
        end = time.monotonic() + seconds
        try:
            self._end.settimeout(seconds)
            self._end.send(number + packet)
            answer = b""
            while answer[:NUMBER_BYTES] != number:
                self._end.settimeout(max(end - time.monotonic(), 0.001))
                answer = self._receive([] if fds is None else fds)
        except TimeoutError as error:
            raise self._late(seconds) from error
        except OSError as error:
            raise self._lost(error) from error
        self._interrupted = False
        if answer[NUMBER_BYTES:][:1] == b"-":
            raise self._reported(json.loads(answer[NUMBER_BYTES + 1 :]))
        return answer[NUMBER_BYTES + 1 :]

    def _receive(self, fds: list[int]) -> bytes:
        """Return the next answer, and replace *fds* by its file descriptors."""
        _close_all(fds)  # they belong to an answer to an earlier packet
        answer, passed, _, _ = socket.recv_fds(self._end, MAX_BYTES, 1)
        fds += passed
        if not answer:
            raise self._lost(None)
        return answer

    def _late(self, seconds: float) -> DeviceTimeout:
        self._process.kill()
        self.close()
        return DeviceTimeout(
            f"the worker for the Hexagon did not answer within {seconds:g} s and was killed",
            remedy=codes.decode(0x0C).remedy,
            call=codes.INVOKE,
            code=0x0C,
        )

    def _lost(self, error: OSError | None) -> DeviceLost:
        self.close()
        return DeviceLost(
            f"the worker for the Hexagon ended ({error or self._process.returncode})",
            remedy=codes.REOPEN,
            call=codes.INVOKE,
            code=0x27,
        )

    def _reported(self, fields: dict[str, Any]) -> NpurtError:
        """Return the error that the worker reported; close the worker if the DSP is lost."""
        kind = getattr(errors, fields.pop("kind"))
        error = kind(fields.pop("what"), **fields)
        assert isinstance(error, NpurtError)
        if isinstance(error, DeviceLost | DeviceTimeout):
            self.close()
        return error


def connect(connection: Connection) -> Transport:
    """Open a session; use a worker process if `connection.worker` is True.

    Raises:
        NpurtError: The session cannot be opened; see `Session.open`.
    """
    return Worker(connection) if connection.worker else connection.open_session()


def _require_same_npurt(version: str) -> None:
    """Check the version of a worker: a new worker runs the npurt that is installed now.

    Raises:
        DriverError: npurt was replaced since this process started.
    """
    if version != __version__:
        raise DriverError(
            f"the worker for the Hexagon is npurt {version}, and this program npurt {__version__}",
            remedy="start the program again: npurt was replaced while it ran",
            call=codes.OPEN,
            code=0,
        )


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _spawn() -> tuple[socket.socket, "subprocess.Popen[bytes]", int]:
    """Start a worker; return the parent's socket, the process, and the parent's end of the pipe.

    Raises:
        DriverError: The system allows no further process or file descriptor.
    """
    try:
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as passed:
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(mine)
            passed.enter_context(its)
            watched, life = os.pipe()
            undo.callback(os.close, life)
            passed.callback(os.close, watched)
            process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path, fd=its.fileno(), life=watched)],
                pass_fds=(its.fileno(), watched),
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C on the terminal interrupts only the parent
            )
            undo.pop_all()
    except OSError as error:
        raise DriverError(
            f"cannot start a worker for the Hexagon: {error}",
            remedy="close other programs, or raise the limits that `ulimit -n -u` shows",
            call="fork",
            code=error.errno or 0,
        ) from error
    return mine, process, life


def _reap(parent: int, end: socket.socket, process: "subprocess.Popen[bytes]", life: int) -> None:
    """End a worker by closing its socket; kill it if it runs two seconds longer."""
    end.close()
    if parent != os.getpid():
        return  # this process is a fork: the worker belongs to the parent
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    os.close(life)
    process.kill()
    process.wait()


# --- The worker process --------------------------------------------------------------------------


def main(fd: int, life: int) -> None:
    """Serve the parent until it closes the socket *fd*; exit at once if the pipe *life* closes."""
    threading.Thread(target=_follow, args=(life,), daemon=True).start()
    with socket.socket(fileno=fd) as end:
        server = _Server(end)
        try:
            while packet := end.recv(MAX_BYTES):
                server.serve(packet)
        finally:
            server.close()


def _follow(life: int) -> None:
    os.read(life, 1)
    os._exit(1)


class _Server:
    """Answers the packets of one parent and has one session."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._transport: Transport | None = None
        self._blocks: dict[int, Block] = {}  # by number
        self._exchanges: dict[int, tuple[U8, U8, Send]] = {}  # by bytes of the batch

    def serve(self, packet: bytes) -> None:
        """Answer one packet."""
        number, letter = packet[:NUMBER_BYTES], packet[NUMBER_BYTES:][:1]
        work = {
            b"o": self._open,
            b"a": self._allocate,
            b"m": self._on_block,
            b"x": self._exchange,
            b"n": self._nothing,
        }[letter]
        try:
            answer, fds = work(packet[NUMBER_BYTES + 1 :])
            socket.send_fds(self._end, [number, b"+", answer], fds)
        except NpurtError as error:
            fields = {"kind": type(error).__name__, **vars(error)}
            self._end.send(number + b"-" + json.dumps(fields).encode())

    def close(self) -> None:
        """Close the session."""
        if self._transport:
            self._transport.close()

    def _open(self, connection: bytes) -> Answer:
        opened = self._transport = Connection(**json.loads(connection)).open_session()
        return json.dumps([opened.info, opened.simulated, __version__]).encode(), []

    def _allocate(self, nbytes: bytes) -> Answer:
        assert self._transport
        block = self._transport.allocate(int(nbytes))
        self._blocks[block.fd] = block
        return json.dumps([block.fd, block.nbytes]).encode(), [block.fd]

    def _on_block(self, asked: bytes) -> Answer:
        method, number = json.loads(asked)
        getattr(self._transport, method)(self._blocks[number])
        if method == "free":
            del self._blocks[number]
        return b"", []

    def _nothing(self, nothing: bytes) -> Answer:
        return nothing, []

    def _exchange(self, packet: bytes) -> Answer:
        assert self._transport
        written, read = map(self._blocks.get, _BLOCKS.unpack_from(packet))
        batch = packet[_BLOCKS.size :]
        request, reply, send = self._exchanges.get(len(batch)) or self._prepare(len(batch))
        request[:] = np.frombuffer(batch, np.uint8)
        reply[:] = 0
        send(written, read)
        return reply.tobytes() + self._transport.packets().to_bytes(8, "little"), []

    def _prepare(self, nbytes: int) -> tuple[U8, U8, Send]:
        assert self._transport
        request, reply = np.zeros(nbytes, np.uint8), messages.reply()
        self._exchanges[nbytes] = request, reply, self._transport.prepare(request, reply)
        return self._exchanges[nbytes]
