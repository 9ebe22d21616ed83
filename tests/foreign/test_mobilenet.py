"""Test a MobileNet on the simulator of the RK3588, through Mesa's driver for its NPU.

mobilenet.py has the network and its outputs by TensorFlow Lite, on the CPU and through Mesa's
teflon delegate.  The expected output of a layer is computed here from the output of the layer
before, exactly: integer sums, then the real scale.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.foreign import teflon
from tools import build

# One process runs all tests, because they check the same two runs.
pytestmark = [pytest.mark.foreign, pytest.mark.xdist_group("mobilenet")]

LAYERS = 27
SCALE = 6 / 255
# The rounding of a byte and of the scale, which has 15 bits on the NPU and 31 on the CPU.
NPU, CPU = 0.5 + 255 * 2**-14, 0.5 + 255 * 2**-30


@pytest.fixture(scope="session")
def mesa(prepared, tmp_path_factory):
    """Return the arrays that mobilenet.py saved, and the simulator's report."""
    with prepared("Mesa's teflon delegate"):
        teflon.ROOT.set_up()
        package = build.ROOT / "build/aarch64/npurt"  # where the build of the wheel puts it
        (simulator,) = build.make(package, "aarch64", ["rknpu"])
    folder = tmp_path_factory.mktemp("mesa")
    report = folder / "report.json"
    settings = f"log=1 hang_ms=1 nodes=accel0 report={report}"
    done = teflon.ROOT.python(
        Path(__file__).with_name("mobilenet.py"),
        teflon.DELEGATE,
        folder / "arrays.npz",
        preload=simulator,
        env={"NPURT_SIM_RKNPU": settings},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(np.load(folder / "arrays.npz")), json.loads(report.read_text())


def exact(arrays, layer, before):
    """Return a layer's output before it is rounded, from the output of the layer before."""
    depthwise, stride, zero, weight_zero = arrays[f"layer{layer}"]
    weights = arrays[f"weights{layer}"].astype(np.float64) - weight_zero
    kernel, size = weights.shape[1], before.shape[1]
    after = -(-size // stride)
    padding = max((after - 1) * stride + kernel - size, 0)  # TensorFlow's "same"
    sides = (padding // 2, padding - padding // 2)
    padded = np.pad(before[0].astype(np.float64) - zero, (sides, sides, (0, 0)))
    biases = arrays[f"biases{layer}"]
    sums = np.zeros((after, after, len(biases))) + biases  # integers far below 2^53
    span = (after - 1) * stride + 1
    for y, x in np.ndindex(kernel, kernel):
        window = padded[y : y + span : stride, x : x + span : stride]
        sums += window * weights[0, y, x] if depthwise else window @ weights[:, y, x].T
    return np.clip(sums * arrays[f"scale{layer}"] / SCALE, 0, 255)


@pytest.mark.parametrize(("where", "tolerance"), [("npu", NPU), ("cpu", CPU)])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_is_right_but_for_its_rounding(mesa, layer, where, tolerance):
    arrays, _ = mesa
    before = arrays[f"{where}_output{layer - 1}"] if layer else arrays["input"]
    want = exact(arrays, layer, before)

    assert want.std() > 30  # not all zeros
    assert np.abs(arrays[f"{where}_output{layer}"][0] - want).max() <= tolerance


def test_every_layer_ran_on_the_npu(mesa):
    _, report = mesa

    assert report["refused"] == 0, report["reasons"]
    assert report["jobs"]["rocket"] == LAYERS
    # Some layers run in parts, which share data in the NPU's memory.
    assert sum(core["tasks"] for core in report["cores"]) > report["jobs"]["rocket"]
