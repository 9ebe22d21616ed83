"""Test npurt and the recorded calls on the libcdsprpc that boards have, Debian's build of it.

The library runs under qemu-aarch64.  sim/fastrpc_kernel is the driver below it, and npurt's
simulator is the DSP: the skel runs under qemu-hexagon.  These tests show the behaviour of the
library's code; they show nothing about a board's driver, firmware, caches or speed.
"""

import json
import re

import pytest

import npurt
from tests.foreign import fastrpc
from tests.llm import tiny
from tests.sim_fastrpc.answers import record

pytestmark = [pytest.mark.foreign, pytest.mark.xdist_group("fastrpc")]

RECORDED = record.recorded()
NEWER = record.recorded_newer()
# In these calls, the library writes outside its table of domains, or uses memory that it has freed.
# The results are random, and the library may hang.
CHANCE = {"no_domain_exception", "no_domain_notification", "no_domain_type",
          "no_domain_type_below", "queue_last", "queue_twice"}  # fmt: skip
# In these calls, a thread of the library races the client: on a busy machine, an answer is read
# before its queue is gone.
RACES = {"queues"}
TRIES = 5
MODEL = tiny.path("llama3-256", "q4_k_m")

# An emulated processor is slow: on a busy machine, a worker takes minutes to start.
PATIENCE = """
from npurt.hexagon.connect import probe, worker

probe.QUEUE_SECONDS = 600
worker.Worker.__init__.__defaults__ = (600,)
"""
TEXT = """
import sys
import npurt

with npurt.Llama(sys.argv[1], "hexagon:0", n_ctx=64, progress=False, strict=True) as llm:
    print(repr("".join(llm.generate([1, 2, 3], max_tokens=8, temperature=0, stream=True))))
    print(llm.report())
"""
KILLED = """
import os
import signal
import sys
from pathlib import Path
import npurt

def kill():  # the child of this process that emulates the DSP
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            if "qemu-hexagon" in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(int(child), signal.SIGKILL)

with npurt.Llama(sys.argv[1], "hexagon:0", n_ctx=64, progress=False, strict=True) as llm:
    pieces = llm.generate([1, 2, 3], max_tokens=8, temperature=0, stream=True)
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
from npurt.hexagon.doctor import trial
from npurt.hexagon.fastrpc import lib

PATIENCE = '''
from npurt.hexagon.doctor import trial
trial.STEP_SECONDS = trial.QUEUE_SECONDS = 600
'''
trial._START = PATIENCE + trial._START  # of the process in which the doctor tries a session
trial.trial.__defaults__ = (600,)

lib.simulator = lambda: sys.argv[1]  # in whose place the checks of a DSP are made off a board
sys.exit(main(["doctor", "-dev", "hexagon:sim"]))
"""


@pytest.fixture(scope="session")
def kernel(prepared, tmp_path_factory):
    with prepared("Debian's libfastrpc1"):
        fastrpc.ROOT.set_up()
        fastrpc.npurt()
        return fastrpc.kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture(scope="session")
def answered(kernel):
    """Return a function that maps names of scenarios to the library's answers."""

    def ask(names):
        command = "-m", "tests.sim_fastrpc.answers", fastrpc.LIBRARY, *names
        done = fastrpc.ROOT.python(*command, preload=kernel, env=record.environment())
        assert done.returncode == 0, done.stderr
        return record.parse(done.stdout)

    return ask


@pytest.fixture(scope="session")
def answers(answered):
    return answered(RECORDED.keys() - CHANCE)


@pytest.fixture
def run(kernel, tmp_path):
    """Return a function that runs Python on the library and returns output and counters."""

    def start(code, *arguments, **variables):
        counts = tmp_path / "counts"
        environment = {
            "PYTHONPATH": str(record.ROOT),
            "NPURT_LIBRARIES": str(fastrpc.PACKAGE),
            "NPURT_FASTRPC_LIBRARY": str(fastrpc.LIBRARY),
            "NPURT_KERNEL_COUNTS": str(counts),
            "NPURT_CACHE": str(tmp_path / "cache"),
            "NPURT_DEADLINE": "600",
            **variables,
        }
        done = fastrpc.ROOT.python(
            "-c", PATIENCE + code, *arguments, preload=kernel, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, [json.loads(line) for line in counts.read_text().splitlines()]

    return start


@pytest.fixture(scope="session")
def text():
    """Return the model's text on npurt's simulator alone."""
    with npurt.Llama(MODEL, "hexagon:sim", n_ctx=64, progress=False, strict=True) as llm:
        return repr("".join(llm.generate([1, 2, 3], max_tokens=8, temperature=0, stream=True)))


@pytest.mark.parametrize("scenario", [name for name in RECORDED if name not in CHANCE])
def test_the_library_answers_as_recorded(answers, answered, scenario):
    """Answers in which this version differs from the recorded one are recorded, too."""
    ending, others = NEWER.get(scenario, (RECORDED[scenario][0], []))
    expected = ending, record.replaced(RECORDED[scenario][1], others)
    said = answers[scenario]
    for _ in range(TRIES - 1 if scenario in RACES else 0):
        said = said if said == expected else answered([scenario])[scenario]
    assert said == expected


@pytest.mark.parametrize(
    ("variables", "way"),
    [
        ({}, "VTCM, invoke)"),
        ({"NPURT_HEXAGON_TRANSPORT": "dspqueue"}, "VTCM, dspqueue)"),
        ({"NPURT_HEXAGON_WORKER": "1"}, "invoke, worker process)"),
    ],
)
def test_a_model_writes_the_same_text(run, text, variables, way):
    said, counts = run(TEXT, MODEL, **variables)

    assert said.splitlines()[0] == text
    assert way in said
    assert "offload: 100.0 %" in said
    if "NPURT_HEXAGON_WORKER" in variables:
        return  # npurt kills a worker that needs 2 s to end, as an emulated one may
    worked = max(counts, key=lambda process: process["calls"])
    assert worked["calls"] > 50  # each product, or each preparation of a product
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
    said, _ = run(TEXT, MODEL, **variables)

    assert said.splitlines()[0] == text
    assert "was opened again and its weights uploaded" in said
    assert reason in said


@pytest.mark.parametrize("transport", ["invoke", "dspqueue"])
def test_a_dsp_that_is_killed_costs_no_token(run, text, transport):
    said, _ = run(KILLED, MODEL, NPURT_HEXAGON_TRANSPORT=transport)

    assert said.splitlines()[0] == text
    (event,) = [line for line in said.splitlines() if "was opened again" in line]
    assert ("dspqueue" in event) == (transport == "dspqueue")
    assert "offload: 100.0 %" in said


def test_a_product_is_right(run):
    """The weights are exact in 8 bits here; only the activations are rounded."""
    said, counts = run(MATMUL)

    assert float(said) <= 2**-8
    assert max(process["calls"] for process in counts) > 0


def test_the_doctor_finds_nothing(run):
    said, _ = run(DOCTOR, fastrpc.LIBRARY)

    checks = re.findall(r"^  (\S+) +(library|capabilities|skel|session|transfer|mapping|dspqueue)",
                        said, re.MULTILINE)  # fmt: skip
    assert checks == [("ok", name) for name in ("library", "capabilities", "skel", "session",
                                                "transfer", "mapping", "dspqueue")]  # fmt: skip
