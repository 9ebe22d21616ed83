"""Test a MobileNet on the simulator of the RK3588, through drivers of others for its NPU.

mobilenet.py has the network and its outputs by TensorFlow Lite, on the CPU and through Mesa's
teflon delegate; librocketnpu reads the same file.  The expected output of a layer is computed here
from the output of the layer before, exactly: integer sums, then the real scale.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from npurt import build
from tests.foreign import librocketnpu, teflon

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
        teflon.set_up()
        package = build.ROOT / "build/foreign/aarch64"
        (simulator,) = build.make(package, "aarch64", ["rknpu"])
    folder = tmp_path_factory.mktemp("mesa")
    report = folder / "report.json"
    status, said = teflon.start(
        simulator,
        {"NPURT_SIM_RKNPU": f"log=1 hang_ms=1 nodes=accel0 report={report}"},
        Path(__file__).with_name("mobilenet.py"),
        teflon.DELEGATE,
        folder / "arrays.npz",
    )
    assert status == 0, said
    return dict(np.load(folder / "arrays.npz")), json.loads(report.read_text())


@pytest.fixture(scope="session")
def library(mesa, prepared, preload, tmp_path_factory):
    """Return the layers' outputs by librocketnpu, and the simulator's report."""
    arrays, _ = mesa
    with prepared("librocketnpu"):
        programs = librocketnpu.build()
    folder = tmp_path_factory.mktemp("librocketnpu")
    for name in ("model", "input"):
        arrays[name].tofile(folder / name)
    subprocess.run(
        [programs / "test_mobilenet", "model", "1", "", "input"],
        cwd=folder,
        env={**os.environ, **preload(folder / "report.json")},
        check=True,
        timeout=900,
    )
    outputs = {f"library_output{i}": _read(folder, arrays, i) for i in range(LAYERS)}
    return outputs, json.loads((folder / "report.json").read_text())


def _read(folder, arrays, layer):
    shape = arrays[f"cpu_output{layer}"].shape
    return np.fromfile(folder / f"output_{layer}.bin", np.uint8).reshape(shape)


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


def check(arrays, layer, outputs, tolerance):
    """Check that a layer's output is the rounded exact output, and not all zeros."""
    before = outputs(layer - 1) if layer else arrays["input"]
    want = exact(arrays, layer, before)

    assert want.std() > 30
    assert np.abs(outputs(layer)[0] - want).max() <= tolerance


@pytest.mark.parametrize(("where", "tolerance"), [("npu", NPU), ("cpu", CPU)])
@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_is_right_but_for_its_rounding(mesa, layer, where, tolerance):
    arrays, _ = mesa

    check(arrays, layer, lambda i: arrays[f"{where}_output{i}"], tolerance)


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_layer_by_librocketnpu_is_right_but_for_its_rounding(mesa, library, layer):
    arrays, _ = mesa
    outputs, _ = library

    check(arrays, layer, lambda i: outputs[f"library_output{i}"], NPU)


@pytest.mark.parametrize("client", ["mesa", "library"])
def test_every_layer_ran_on_the_npu(request, client):
    _, report = request.getfixturevalue(client)

    assert report["refused"] == 0, report["reasons"]
    assert report["jobs"]["rocket"] % LAYERS == 0  # librocketnpu runs the network twice
    # Some layers run in parts, which share data in the NPU's memory.
    assert sum(core["tasks"] for core in report["cores"]) > report["jobs"]["rocket"]


@pytest.mark.parametrize("name", ["test_sw_ops", "test_rknpu_abi"])
def test_librocketnpu_passes_its_own_tests(prepared, preload, tmp_path, name):
    with prepared("librocketnpu"):
        programs = librocketnpu.build()

    env = {**os.environ, **preload(tmp_path / "report.json")}
    subprocess.run([programs / name], cwd=tmp_path, env=env, check=True, timeout=900)
