"""Test npurt on Linux's rocket driver: detection, products and texts.  See test_driver.py."""

import json
import os
import subprocess
import sys
import time

import pytest

from tools.build import ROOT

pytestmark = pytest.mark.kernel

MODEL = ROOT / "tests/data/models/llama3/llama3-q8_0.gguf"


def python(*words):
    """Run Python in a separate process, the only user of the NPU; return its output."""
    env = os.environ | {"NPURT_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=200, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("command", "says"),
    [("devices", "rocket"), ("doctor -dev rknpu", "ok"), ("probe -dev rknpu", "rocket")],
)
def test_commands_find_an_npu_that_works(command, says):
    assert says in python("-m", "npurt", *command.split())


PRODUCTS = """
import numpy as np
import npurt

rng = np.random.default_rng(0)
for m, k, n in [(1, 64, 64), (5, 896, 300), (64, 512, 512)]:
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    y = npurt.matmul(a, b, device="rknpu")
    np.testing.assert_array_equal(y, a.astype(np.int32) @ b.astype(np.int32))
print(npurt.report())
"""


def test_products_of_integers_are_exact(hardware):
    with hardware():
        assert "0 fallbacks" in python("-c", PRODUCTS)


def test_a_job_that_hangs_costs_no_product(hardware, log):
    """npurt repeats a job that the driver ended."""
    with hardware("fault=timeout@submit:2"):
        assert "0 wrong" in python("-c", PRODUCTS)

    assert "NPU job timed out" in log()


TEXT = """
import json, sys
import npurt

with npurt.Llama(sys.argv[1], device=sys.argv[2], verify="always") as llm:
    text = llm.generate([1, 5, 9, 200, 77, 3], max_tokens=24, temperature=0)
    print(json.dumps([text, str(llm.report())]))
"""


@pytest.mark.usefixtures("cores")
def test_a_models_text_is_that_of_the_simulator():
    (real, report), (simulated, _) = (
        json.loads(python("-c", TEXT, MODEL, device)) for device in ("rknpu", "rknpu:sim")
    )

    assert real == simulated
    assert "100.0 % of MACs on rknpu:0 (rknpu:0: rocket at /dev/accel/accel0, 3 cores)" in report
    assert "0 fallbacks" in report


OPENED_AGAIN = """
import sys
import npurt

for _ in range(10):
    with npurt.Llama(sys.argv[1], device="rknpu") as llm:
        llm.generate([1, 5, 9], max_tokens=1, temperature=0)
"""


@pytest.mark.usefixtures("cores")
def test_a_device_may_be_closed_right_after_its_last_job():
    """Without a wait the driver crashes: SETTLING_S of npurt/rknpu/driver/rocket.py."""
    python("-c", OPENED_AGAIN, MODEL)
    time.sleep(1)
