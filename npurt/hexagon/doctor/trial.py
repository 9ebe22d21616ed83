"""Try the DSP in a process that can be killed; each step writes its findings as a line of JSON.

A trial is {"domain": the DSP, "steps": {name: findings}, "ended": the reason for an early end, or
""}.  The findings of a step that failed have "error" and "remedy".
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from npurt.errors import NpurtError
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.probe import QUEUE_SECONDS
from npurt.hexagon.doctor import elf, loadable
from npurt.hexagon.fastrpc import abi, rpcmem
from npurt.hexagon.fastrpc.abi import SessionRequest
from npurt.hexagon.fastrpc.control import capabilities
from npurt.hexagon.fastrpc.lib import loaded
from npurt.hexagon.session import checksum, messages, skel
from npurt.hexagon.session.session import NONCE_MASK, Session
from npurt.hexagon.session.transport import TransportName

STEP_SECONDS = 15  # the kernel waits 10 s for the start of a process on the DSP
ECHOES = 100
COPIED = 1 << 16  # bytes of a buffer that the kernel copies
SHARED = 1 << 26  # bytes of a shared block, which the DSP reads without a copy
CYCLES = 4  # times that the block is mapped and unmapped
_START = """
import sys
sys.path[:] = {path!r}
from npurt.hexagon.doctor.trial import main
main({connection!r})
"""

Seen = dict[str, Any]


def trial(connection: Connection, seconds: float = STEP_SECONDS) -> Seen:
    """Try *connection* in another process, each step within *seconds*; never raises."""
    code = _START.format(path=sys.path, connection=json.dumps(asdict(connection)))
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # steps report what the library logs there
            process_group=0,
        )
    except OSError as error:
        ended = f"the process of the trial cannot be started: {error}"
        return {"domain": connection.domain, "steps": {}, "ended": ended}
    steps: dict[str, Seen] = {}
    step = "start"
    ended = ""
    try:
        for line in _lines(process, seconds):
            told = json.loads(line)
            step = told.pop("step")
            if told:
                steps[step] = told
                step = "end"
    except TimeoutError:
        ended = f"no answer within {seconds:g} s: {step}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # the group includes a simulator
            os.killpg(process.pid, signal.SIGKILL)
        code_of_exit = process.wait()
    if not ended and step != "end":
        ended = f"the process died of {_cause_of_exit(code_of_exit)}: {step}"
    return {"domain": connection.domain, "steps": steps, "ended": ended}


def _lines(process: "subprocess.Popen[bytes]", seconds: float) -> Iterator[bytes]:
    """Yield the lines that a process writes; TimeoutError if it writes nothing for *seconds*."""
    assert process.stdout
    rest = b""
    with process.stdout as pipe, selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while ready.select(seconds):
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
    raise TimeoutError


def _cause_of_exit(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    return f"exit status {code}"


# --- The process of the trial --------------------------------------------------------------------


def main(connection: str) -> None:
    """Run all steps in order; a step that fails ends the trial."""
    said = os.dup(1)
    os.dup2(2, 1)  # output of the library goes to stderr
    trying = _Trying(Connection(**json.loads(connection)))
    for name, step in trying.steps():
        _tell(said, name, {})
        try:
            _tell(said, name, step())
        except NpurtError as error:
            code = getattr(error, "code", None)
            _tell(said, name, {"error": error.what, "remedy": error.remedy, "code": code})
            break
    skel.withdraw()
    os._exit(0)  # skip the library's destructor, which may wait for a lost DSP


def _tell(said: int, step: str, seen: Seen) -> None:
    os.write(said, json.dumps({"step": step, **seen}).encode() + b"\n")


class _Trying:
    """The steps of a trial, and the session that they share."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: Session | None = None

    def steps(self) -> Iterator[tuple[str, Callable[[], Seen]]]:
        """Yield the steps in their order."""
        yield "library", self.library
        yield "capabilities", self.capabilities
        yield "skel", self.skel
        yield "session", self.session
        yield "echo", self.echo
        yield "copy", self.copy
        yield "shared", self.shared
        yield "mapping", self.mapping
        yield "dspqueue", self.dspqueue

    def library(self) -> Seen:
        """Load the library and make a request that needs no DSP; the SDK's stub refuses it."""
        library = self._connection.load()
        wish = abi.ffi().new("remote_rpc_control_unsigned_module *", [abi.CDSP["cdsp"], 1])
        size = abi.ffi().sizeof(wish[0])
        code, _ = library.call("remote_session_control", SessionRequest.UNSIGNED_MODULE, wish, size)
        return {
            "path": library.path,
            "loaded": loaded(),
            "missing": sorted(set(abi.OPTIONAL) - library.features),
            "unsigned": code,
        }

    def capabilities(self) -> Seen:
        """Ask the DSP for its properties."""
        return asdict(capabilities(self._connection.load(), self._connection.domain))

    def skel(self) -> Seen:
        """Choose npurt's code for the DSP and verify the file."""
        arch = capabilities(self._connection.load(), self._connection.domain).arch
        chosen = skel.choose(arch)
        code = skel.code_of(chosen)
        findings = loadable.verify_form(code, arch=arch, entry=skel.ENTRY)
        shared = elf.read(code)
        return {
            "file": chosen.name,
            "available": list(skel.available()),
            "arch": shared.arch,
            "imports": [name for name, weak in shared.imports.items() if not weak],
            "optional_imports": [name for name, weak in shared.imports.items() if weak],
            "checksum": checksum.has_section(code),
            "findings": [asdict(finding) for finding in findings],
        }

    def session(self) -> Seen:
        """Start npurt's code on the DSP."""
        start = time.monotonic()
        self._session = Session.open(
            self._connection.load(), self._connection.domain, deadline=STEP_SECONDS
        )
        return {"seconds": time.monotonic() - start, "info": self._session.info._asdict()}

    def _opened(self) -> Session:
        assert self._session
        return self._session

    def echo(self) -> Seen:
        """Call npurt's code repeatedly."""
        start = time.monotonic()
        for nonce in range(ECHOES):
            (answer,) = self._opened().call("echo", nonce)
            _compare(nonce ^ NONCE_MASK, answer, "numbers that are echoed")
        return {"seconds": (time.monotonic() - start) / ECHOES}

    def copy(self) -> Seen:
        """Send buffers that the kernel copies, and have the DSP sum their bytes."""
        for nbytes in (1, COPIED):
            data = _bytes(nbytes)
            (total,) = self._opened().call("checksum", data, -1, 0, 0)
            _compare(int(data.sum(dtype=np.uint64)), total, f"{nbytes} bytes that are copied")
        return {"bytes": COPIED}

    def shared(self) -> Seen:
        """Share a block, and have the DSP sum its bytes."""
        block = rpcmem.allocate(self._opened().library, SHARED)
        self._opened().map(block)
        block.array[:] = _bytes(block.nbytes)
        self._opened().sync_for_device(block)
        start = time.monotonic()
        (total,) = self._opened().call("checksum", b"", block.fd, 0, block.nbytes)
        seconds = time.monotonic() - start
        _compare(
            int(block.array.sum(dtype=np.uint64)), total, f"{block.nbytes} bytes that are shared"
        )
        self._opened().free(block)
        return {"bytes": block.nbytes, "seconds": seconds}

    def mapping(self) -> Seen:
        """Map and unmap one block repeatedly."""
        block = rpcmem.allocate(self._opened().library, COPIED)
        for _ in range(CYCLES):
            self._opened().map(block)
            self._opened().free(block)
        self._opened().close()
        return {"cycles": CYCLES}

    def dspqueue(self) -> Seen:
        """Send an empty batch through a queue."""
        connection = replace(
            self._connection, transport=TransportName.DSPQUEUE, worker=False, deadline=QUEUE_SECONDS
        )
        request, reply = messages.BatchMessage(0), messages.reply()
        with contextlib.closing(connection.open_session()) as queue:
            queue.prepare(request.data, reply)()
            messages.check(request, reply)
        return {"works": True}


def _bytes(nbytes: int) -> Any:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


def _compare(sent: int, seen: int, what: str) -> None:
    if sent != seen:
        raise NpurtError(
            f"{what} do not arrive whole: the DSP returned {seen:#x}, not {sent:#x}",
            remedy="update kernel and firmware: results cannot be trusted",
        )
