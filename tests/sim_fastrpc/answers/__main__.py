"""Run scenarios, by default all: python -m tests.sim_fastrpc.answers LIBRARY [SCENARIO...].

The output has the form of recorded.txt.  Each scenario runs in a child of this process, because
some scenarios end the process.
"""

import os
import signal
import sys
import tempfile

from tests.limits import HANG_SECONDS
from tests.sim_fastrpc.answers import control, handles, memory, queues  # noqa: F401
from tests.sim_fastrpc.answers.client import SCENARIOS, Client

SETTINGS = "NPURT_SIM_FASTRPC"
FAULTS = {"crash": "crash=1", "crash_queue": "crash=1", "restart": "ssr=1:2000"}
FAULTS["absent"] = "present=0"


def child(library, name, out):
    """Run a scenario in this process, which then ends as a client does."""
    os.dup2(out.fileno(), sys.stdout.fileno())
    signal.alarm(HANG_SECONDS)
    os.environ[SETTINGS] = f"{os.environ.get(SETTINGS, '')} {FAULTS.get(name, '')}".strip()
    SCENARIOS[name](Client(library))


def ending(status):
    """Return the end of a child in one word."""
    code = os.waitstatus_to_exitcode(status)
    return "ends" if code == 0 else signal.Signals(-code).name if code < 0 else str(code)


def main(library, *names):
    for name in names or SCENARIOS:
        with tempfile.TemporaryFile("w+") as out:
            pid = os.fork()
            if not pid:
                child(library, name, out)
                return
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            lines = [
                f"{name}: {ending(status)}",
                *(f"  {line}" for line in out.read().splitlines()),
            ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()  # a child has a copy of the buffer


main(*sys.argv[1:])
