"""Test npurt and the recorded calls on the libcdsprpc that boards have.

The library is built from Qualcomm's sources, unchanged.  sim/fastrpc_kernel is the driver below it,
and npurt's simulator is the DSP: the skel runs under qemu-hexagon.  These tests show the behaviour
of the library's code; they show nothing about a board's driver, firmware, caches or speed.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.foreign import fastrpc
from tests.limits import HANG_SECONDS
from tests.sim_fastrpc.answers import record

pytestmark = [pytest.mark.foreign, pytest.mark.xdist_group("fastrpc")]

RECORDED = record.recorded()
# In these calls, the library writes outside its table of domains, or uses memory that it has freed.
# The results are random, and the library may hang.
CHANCE = {"get_uri", "names", "no_domain_exception", "no_domain_notification", "no_domain_type",
          "no_domain_type_below", "queue_last", "queue_twice", "reserve"}  # fmt: skip
# In these calls, a thread of the library races the client: on a busy machine, an answer is read
# before its queue is gone.
RACES = {"queues"}
TRIES = 5

TEXT = """
import sys
import npurt
from tests.llm import tiny

path = tiny.path("llama3-256", "q4_k_m")
with npurt.Llama(path, sys.argv[1], n_ctx=64, progress=False, strict=True) as llm:
    print(repr("".join(llm.generate([1, 2, 3], max_tokens=12, temperature=0, stream=True))))
    print(llm.report())
"""
KILLED = """
import os
import signal
import sys
from pathlib import Path
import npurt
from tests.llm import tiny

def kill():  # the child of this process that emulates the DSP
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            if "qemu-hexagon" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)

path = tiny.path("llama3-256", "q4_k_m")
with npurt.Llama(path, sys.argv[1], n_ctx=64, progress=False, strict=True) as llm:
    pieces = llm.generate([1, 2, 3], max_tokens=12, temperature=0, stream=True)
    some = next(pieces) + next(pieces)
    kill()
    print(repr(some + "".join(pieces)))
    print(llm.report())
"""
MATMUL = """
import numpy as np
import npurt

rng = np.random.default_rng(0)
a = rng.standard_normal((4, 256), dtype=np.float32)
b = rng.integers(-7, 8, (256, 64)).astype(np.float32)
w = npurt.pack(b, "q8_0", device="hexagon:0")
error = np.abs(npurt.matmul(a, w, verify="always") - a @ b).max()
print(error / np.abs(a).max() / np.abs(b).sum(0).max())
"""
DOCTOR = """
import sys
from npurt.cli import main
from npurt.hexagon.fastrpc import lib

lib.simulator = lambda: sys.argv[1]  # in whose place the checks of a DSP are made off a board
sys.exit(main(["doctor", "-dev", "hexagon:sim"]))
"""


@pytest.fixture(scope="session")
def library(prepared):
    with prepared("qualcomm/fastrpc"):
        return fastrpc.build()


@pytest.fixture(scope="session")
def kernel(library, tmp_path_factory):
    return fastrpc.kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def run(library, kernel, tmp_path):
    """Return a function that runs Python on the library and returns output and counters."""

    def start(code, *arguments, **variables):
        counts = tmp_path / "counts"
        environment = {
            **os.environ,
            "PYTHONPATH": str(record.ROOT),
            "LD_PRELOAD": str(kernel),
            "NPURT_FASTRPC_LIBRARY": str(library),
            "NPURT_KERNEL_COUNTS": str(counts),
            "NPURT_CACHE": str(tmp_path / "cache"),
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, [json.loads(line) for line in counts.read_text().splitlines()]

    return start


@pytest.fixture(scope="session")
def text():
    """Return the model's text on npurt's simulator alone."""
    command = [sys.executable, "-c", TEXT, "hexagon:sim"]
    env = {**os.environ, "PYTHONPATH": str(record.ROOT)}
    return subprocess.check_output(command, env=env, text=True).splitlines()[0]


@pytest.mark.parametrize("scenario", [name for name in RECORDED if name not in CHANCE])
def test_the_library_answers_as_recorded(library, kernel, scenario):
    for left in reversed(range(TRIES if scenario in RACES else 1)):
        said = record.run(library, scenario, LD_PRELOAD=str(kernel))
        if said == RECORDED[scenario] or not left:
            break
    assert said == RECORDED[scenario]


@pytest.mark.parametrize(
    ("variables", "way"),
    [
        ({}, "VTCM, invoke)"),
        ({"NPURT_HEXAGON_TRANSPORT": "dspqueue"}, "VTCM, dspqueue)"),
        ({"NPURT_HEXAGON_WORKER": "1"}, "invoke, worker process)"),
    ],
)
def test_a_model_writes_the_same_text(run, text, variables, way):
    said, counts = run(TEXT, "hexagon:0", **variables)

    assert said.splitlines()[0] == text
    assert way in said
    assert "offload: 100.0 %" in said
    worked = max(counts, key=lambda process: process["calls"])
    assert worked["calls"] > 100  # each product, or each preparation of a product
    assert worked["maps"] > 0
    # For a product, its input is written back and its output is invalidated.
    products = int(re.search(r"verified \d+ of (\d+) products", said)[1])
    assert sum(process["syncs"] for process in counts) >= products


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"NPURT_SIM_FASTRPC": "crash=9"}, "exited or crashed"),
        ({"NPURT_SIM_FASTRPC": "ssr=9:300"}, "restarted"),
    ],
)
def test_a_dsp_that_dies_costs_no_token(run, text, variables, reason):
    said, _ = run(TEXT, "hexagon:0", **variables)

    assert said.splitlines()[0] == text
    assert "was opened again and its weights uploaded" in said
    assert reason in said


@pytest.mark.parametrize("transport", ["invoke", "dspqueue"])
def test_a_dsp_that_is_killed_costs_no_token(run, text, transport):
    said, _ = run(KILLED, "hexagon:0", NPURT_HEXAGON_TRANSPORT=transport)

    assert said.splitlines()[0] == text
    (event,) = [line for line in said.splitlines() if "was opened again" in line]
    assert ("dspqueue" in event) == (transport == "dspqueue")
    assert "offload: 100.0 %" in said


def test_a_product_is_right(run):
    """The weights are exact in 8 bits here; only the activations are rounded."""
    said, counts = run(MATMUL)

    assert float(said) <= 2**-8
    assert max(process["calls"] for process in counts) > 0


def test_the_doctor_finds_nothing(run, library):
    said, _ = run(DOCTOR, str(library))

    checks = re.findall(r"^  (\S+) +(library|capabilities|skel|session|transfer|mapping|dspqueue)",
                        said, re.MULTILINE)  # fmt: skip
    assert checks == [("ok", name) for name in ("library", "capabilities", "skel", "session",
                                                "transfer", "mapping", "dspqueue")]  # fmt: skip
