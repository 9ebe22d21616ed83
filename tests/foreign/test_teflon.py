"""A MobileNet through Mesa's teflon delegate, its driver's client, on the simulator of the RK3588.

The network and both its results come from teflon_run.py.  What a layer should have been is computed
here from the layer before it, exactly: integer sums, then the real scale.
"""

import fcntl
import json
from pathlib import Path

import numpy as np
import pytest

from npurt import build
from tests.foreign import teflon
from tests.foreign.sources import MissingError

pytestmark = [pytest.mark.foreign, pytest.mark.xdist_group("teflon")]  # runs once

LAYERS = 27
SCALE = 6 / 255
# A byte's rounding, and that of the scale: the NPU's lists give it 15 bits, the CPU's code 31.
OFF = {"npu": 0.5 + 255 * 2**-14, "cpu": 0.5 + 255 * 2**-30}


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Return the arrays of the network, and the simulator's report."""
    with (build.ROOT / "build/foreign.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            teflon.set_up()
        except MissingError as error:
            pytest.skip(f"Mesa's teflon delegate: {error}")
        package = build.ROOT / "build/foreign/aarch64"
        (simulator,) = build.make(package, "aarch64", ["rknpu"])
    folder = tmp_path_factory.mktemp("teflon")
    report = folder / "report.json"
    status, said = teflon.start(
        simulator,
        {"NPURT_SIM_RKNPU": f"log=1 hang_ms=1 nodes=accel0 report={report}"},
        Path(__file__).with_name("teflon_run.py"),
        teflon.DELEGATE,
        folder / "arrays.npz",
    )
    assert status == 0, said
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


@pytest.mark.parametrize("where", ["npu", "cpu"])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_is_right_but_for_its_rounding(ran, layer, where):
    arrays, _ = ran
    before = arrays[f"{where}_output{layer - 1}"] if layer else arrays["input"]

    want = exact(arrays, layer, before)

    assert want.std() > 30  # it is not all zeros
    assert np.abs(arrays[f"{where}_output{layer}"][0] - want).max() <= OFF[where]


def test_every_layer_ran_on_the_npu(ran):
    _, report = ran

    assert report["refused"] == 0, report["reasons"]
    assert report["jobs"]["rocket"] == LAYERS
    assert (
        sum(core["tasks"] for core in report["cores"]) > LAYERS
    )  # some in parts, one after another
