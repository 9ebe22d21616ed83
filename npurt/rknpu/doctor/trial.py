"""Run `probe` in a child process, which can be killed and prints a line of JSON for each step.

The result of a trial is {"opened": {"detail"} or {"error", "remedy"}, "trials": outcomes of
`probe`, "ended": the reason if the trial ended early, else ""}.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from npurt.errors import NpurtError
from npurt.rknpu.doctor.probe import probe
from npurt.rknpu.driver.names import connection

STEP_SECONDS = 20  # two attempts of 2 s, and the reset by the driver
_START = """
import sys
sys.path[:] = {path!r}
from npurt.rknpu.doctor.trial import main
main({name!r})
"""


def trial(name: str, seconds: float = STEP_SECONDS) -> dict[str, Any]:
    """Try the device *name* in a child process, with *seconds* for each step.  Never raises."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path, name=name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
    except OSError as error:
        ended = f"cannot start a process for the trial: {error}"
        return {"opened": {}, "trials": [], "ended": ended}
    opened: dict[str, Any] = {}
    trials: list[dict[str, Any]] = []
    ended = ""
    try:
        for line in _lines(process, seconds):
            told = json.loads(line)
            if opened:
                trials.append(told)
            else:
                opened = told
        code = process.wait(seconds)
        if code:
            ended = f"the trial ended with status {code}"
    except TimeoutError:
        ended = f"a step did not end within {seconds:g} s"
    except (ValueError, subprocess.TimeoutExpired) as error:
        ended = f"cannot read the results of the trial: {error}"
    finally:
        _end(process)
    return {"opened": opened, "trials": trials, "ended": ended}


def _lines(process: "subprocess.Popen[bytes]", seconds: float) -> Iterator[bytes]:
    """Yield the lines that the process prints.

    Raises:
        TimeoutError: The process printed no line for *seconds*.
    """
    assert process.stdout
    fd = process.stdout.fileno()
    held = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        deadline = time.monotonic() + seconds
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            data = os.read(fd, 1 << 16)
            *lines, held = (held + data).split(b"\n")
            yield from lines
            if lines:
                deadline = time.monotonic() + seconds
            if not data:
                return


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process group; do not wait for a process that hangs in the kernel."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.stdout:
        process.stdout.close()


def main(name: str) -> None:
    """Open the device and run every trial of `probe`; print each result as a line of JSON."""
    try:
        _, connect = connection(name)
        steps = probe(connect)
        opened = {"detail": next(steps).what}
    except NpurtError as error:
        _tell({"error": error.what, "remedy": error.remedy})
        return
    _tell(opened)
    for outcome in steps:
        _tell(dataclasses.asdict(outcome))


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
