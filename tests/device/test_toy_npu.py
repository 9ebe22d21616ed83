"""Test that the toy NPU of examples/, a device of another package, passes `npurt.testing`."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import npurt
from npurt.graph.tensor import Kind
from npurt.reference.device import ReferenceDevice
from npurt.runtime.open.registry import GROUP
from npurt.testing import DeviceSuite
from tests.graph.models import logits
from tests.llm import tiny
from tests.llm.reference import nmse
from tests.runtime.test_execute import FLOAT32

FOLDER = Path(__file__).resolve().parents[2] / "examples/toy_npu"
OF_INT8 = 0.05  # nmse of logits of random models with W8A8; measured: 0.002 to 0.02


@pytest.fixture
def toy(monkeypatch):
    """Make the package importable, with its entry point, as an installation does."""
    monkeypatch.syspath_prepend(str(FOLDER))
    text = (FOLDER / "pyproject.toml").read_text()
    name, value = text.partition(f'entry-points."{GROUP}"]\n')[2].split("\n")[0].split(" = ")
    entry = metadata.EntryPoint(name, value.strip('"'), GROUP)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [entry] * (group == entry.group)
    )
    yield
    sys.modules.pop("toy_npu", None)


@pytest.mark.usefixtures("toy")
class TestToy(DeviceSuite):
    tolerance = 0.02  # of two layers of int8 with a scale a row

    def open(self):
        return npurt.open_device("toy")


class TestNumpy(DeviceSuite):
    tolerance = FLOAT32

    def open(self):
        return ReferenceDevice()


def test_a_suite_that_opens_no_device_is_not_run(tmp_path):
    path = tmp_path / "test_mine.py"
    path.write_text(
        "from npurt.testing import DeviceSuite\n\n\n"
        "class TestHalf(DeviceSuite):\n    tolerance = 1\n\n\n"
        "class TestWhole(DeviceSuite):\n    def open(self): ...\n"
    )
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]

    result = subprocess.run([*command, path], capture_output=True, text=True, cwd=tmp_path)

    assert {line.split("::")[1] for line in result.stdout.splitlines() if "::" in line} == {
        "TestWhole"
    }, result.stdout
    with pytest.raises(TypeError, match="abstract method"):
        DeviceSuite()


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("model", ["llama3", "qwen3moe", "qwen35", "gemma3"])
def test_models_run_on_it(model):
    path = tiny.path(model, "bf16" if model == "gemma3" else "q8_0")
    ids = tiny.ids(model)[:20]

    with npurt.Llama(path, "toy", n_ctx=64, progress=False) as llm:
        y, report = llm.eval(ids), llm.report()

    assert nmse(y, logits(path, ids)) < OF_INT8
    refused = [row for row in report.rows if not row.offloaded]
    assert {row.op for row in refused} == ({"weighted_sum"} if model == "qwen3moe" else set())


@pytest.mark.usefixtures("toy")
def test_layers_are_whole():
    """One segment has a whole dense model with its states."""
    with npurt.Llama(tiny.path(), "toy", n_ctx=64, progress=False) as llm:
        (part,) = llm.model.executor.parts
    assert len(part.graph.tensors(Kind.STATE)) == 2 * llm.config.n_layers


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("dies", [1, 5, 9])
@pytest.mark.parametrize("often", [1, 2, 3])
@pytest.mark.parametrize("model", ["llama3", "qwen35", "qwen3moe"])
def test_a_text_does_not_change_when_it_dies(model, dies, often):
    """It is opened again twice; then the host computes with its bits."""
    path = tiny.path(model, "q8_0")
    with npurt.Llama(path, "toy", n_ctx=64, progress=False) as llm:
        want = llm.generate([1, 2, 3], max_tokens=12, temperature=0, seed=1)
        logits_before = llm.eval([7, 8])

    name = f"toy:dies={dies},often={often}"
    with npurt.Llama(path, name, n_ctx=64, progress=False) as llm:
        assert llm.generate([1, 2, 3], max_tokens=12, temperature=0, seed=1) == want
        np.testing.assert_array_equal(llm.eval([7, 8]), logits_before)
        devices = {part.actual for part in llm.model.executor.parts}
        report = str(llm.report())
    assert f"died in run {dies}" in report
    assert (name in devices) == (often < 3)
    assert ("takes over" in report) == (often == 3)


@pytest.mark.usefixtures("toy")
def test_what_has_no_room_runs_on_the_cpu():
    with npurt.Llama(tiny.path(), "toy:memory=1K", n_ctx=64, progress=False) as llm:
        y = llm.eval([1, 2, 3])
        assert "has no space for" in str(llm.report())
        assert {row.actual for row in llm.report().rows if row.macs} == {"cpu"}
    assert nmse(y, logits(tiny.path(), [1, 2, 3])) < 1e-6


@pytest.mark.usefixtures("toy")
def test_wrong_settings_are_refused():
    with pytest.raises(npurt.SettingError, match="'memory=x'"):
        npurt.open_device("toy:memory=x")
