"""Test the first use of npurt in a process, from several threads at the same time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_SECONDS

FILE = Path(__file__).parent / "data/models/llama3/llama3-q8_0.gguf"
DEVICES = ["cpu", "hexagon:sim", "rknpu:sim", "rknpu:sim-vendor"]

# Every thread does WORK at the same time, in a process that has loaded nothing of npurt yet.
PROCESS = """
import json, sys, threading
import numpy as np

device, threads = sys.argv[1], int(sys.argv[2])
sys.setswitchinterval(1e-6)
barrier, errors, results = threading.Barrier(threads), [], []
x, w = np.ones((2, 64), np.float32), np.ones((32, 64), np.float32)

def use():
    barrier.wait()
    try:
        import npurt
        results.append(work(npurt))
    except BaseException as error:
        errors.append(repr(error))

{work}

threads = [threading.Thread(target=use) for _ in range(threads)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
barrier = threading.Barrier(1)
use()
print(json.dumps([errors, results]))
"""
SHARED = """
def work(npurt):
    return npurt.matmul(x, npurt.QTensor.quantize(w, "q8_0").T, device=device).ravel().tolist()
"""
OWN = """
def work(npurt):
    with npurt.open_device(device) as own:
        y = np.empty((2, 32), np.float32)
        own.matmul(x, own.pack(npurt.QTensor.quantize(w, "q8_0")), y)
        return y.ravel().tolist()
"""
MODEL = """
def work(npurt):
    with npurt.Llama("{path}", device, n_threads=1, n_ctx=16, progress=False) as llm:
        return llm.eval_last([1, 2]).tolist()
"""


def in_a_process(work, device, threads):
    """Return errors and results of *work* in that many threads, and of one more run after them."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS.replace("{work}", work), device, str(threads)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    errors, results = json.loads(done.stdout)
    assert errors == []
    assert len(results) == threads + 1
    return results


@pytest.mark.parametrize("device", DEVICES)
def test_products_that_share_a_device(device):
    for result in in_a_process(SHARED, device, 6):
        assert result == pytest.approx([64] * 64, rel=1 / 127)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_for_each_thread(device):
    """There are three threads, one less than the sessions that a process may have on a DSP."""
    for result in in_a_process(OWN, device, 3):
        assert result == pytest.approx([64] * 64, rel=1 / 127)


@pytest.mark.parametrize("device", DEVICES)
def test_a_model_for_each_thread(device):
    first, *others = in_a_process(MODEL.format(path=FILE), device, 3)

    assert others == [first] * 3


ARCHS = """
archs = iter([68, 75, 79, 81])  # each thread takes one

def work(npurt):
    arch = next(archs)
    with npurt.open_device(f"{device}-v{arch}") as own:
        return f"simulated Hexagon v{arch}, " in own.caps.detail
"""


def test_a_simulated_dsp_of_another_version_for_each_thread():
    assert in_a_process(ARCHS, "hexagon:sim", 3) == [True] * 4
