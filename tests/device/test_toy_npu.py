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
@pytest.mark.parametrize("dies", [1, 5])
def test_a_text_goes_on_when_it_dies(dies):
    with npurt.Llama(tiny.path(), f"toy:dies={dies}", n_ctx=64, progress=False) as llm:
        text = llm.generate([1, 2, 3], max_tokens=12, temperature=0)
        assert f"died in run {dies}" in str(llm.report())
        assert llm.timing.generated_tokens > 0
        assert np.isfinite(llm.eval([1])).all()
    assert isinstance(text, str)


@pytest.mark.usefixtures("toy")
def test_what_has_no_room_runs_on_the_cpu():
    with npurt.Llama(tiny.path(), "toy:memory=1K", n_ctx=64, progress=False) as llm:
        y = llm.eval([1, 2, 3])
        assert "has no space for" in str(llm.report())
        assert {row.actual for row in llm.report().rows} == {"cpu"}
    assert nmse(y, logits(tiny.path(), [1, 2, 3])) < 1e-6


@pytest.mark.usefixtures("toy")
def test_wrong_settings_are_refused():
    with pytest.raises(npurt.SettingError, match="'memory=x'"):
        npurt.open_device("toy:memory=x")
