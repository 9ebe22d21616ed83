"""Run programs that use the library in separate processes, to test effects of process ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

PROLOGUE = """
import ctypes as c, os, signal, sys, threading, time
from pathlib import Path
from tests.sim_fastrpc.rpc import *
rpc = Rpc(Path(sys.argv[1]))
for domain in (3, 11):
    rpc.ask_unsigned(domain)
"""


def start(simulator, skels, code, *, start_new_session=False, **variables):
    """Start *code*, in which `rpc` is the library, with `variables` in the environment."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DSP_LIBRARY_PATH": str(skels)}
    environment = {**environment, **variables}
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code), str(simulator)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def run(simulator, skels, code, **variables):
    """Run *code*, check that it ends without an error, and return its output."""
    with start(simulator, skels, code, **variables) as program:
        said, complained = program.communicate(timeout=HANG_SECONDS)
    assert program.returncode == 0, complained
    return said
