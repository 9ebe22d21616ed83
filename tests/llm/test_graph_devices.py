"""Tests of models on devices that run graphs: numpy, and devices that refuse ops or fail."""

import errno
import gc
import os
import shutil
import subprocess
import sys
import weakref
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import npurt
from npurt.errors import (
    DriverError,
    LayoutError,
    NotOffloaded,
    SettingError,
    UnknownDevice,
    UnsupportedOp,
)
from npurt.graph import ops
from npurt.graph.cost import cost
from npurt.llm.spec.controller import Controller
from npurt.reference.segment import ReferenceSegment
from npurt.runtime.open import registry
from tests.graph.models import logits
from tests.llm import tiny
from tests.llm.reference import nmse
from tests.runtime.test_execute import FLOAT32, Partial

MODELS = ("llama3", "qwen3moe", "qwen35", "gemma3", "lfm2", "gpt-oss", "phi3")
KINDS = {"llama3": "q8_0", "qwen3moe": "q8_0", "qwen35": "q8_0"}
F16_CACHE = 1e-6  # nmse: keys and values are rounded to 11 bits; measured: 2e-8 and less


def path(model):
    return tiny.path(model, KINDS.get(model, "bf16"))


def opened(model, device="numpy", **options):
    return npurt.Llama(path(model), device, n_ctx=64, progress=False, **options)


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_float64(model):
    ids = tiny.ids(model)[:20]

    with opened(model, kv_type="f32") as llm:
        y = llm.eval(ids)

    assert nmse(y, logits(path(model), ids)) < FLOAT32


@pytest.mark.parametrize("model", MODELS)
def test_tokens_can_be_taken_back_and_states_restored(model):
    ids = list(tiny.ids(model)[:20])
    with opened(model) as llm:
        first = llm.eval(ids)
        llm.rollback(7)
        again = llm.eval(ids[13:])
        llm.rewind(9)
        snapshot = llm.snapshot()
        llm.eval([1, 2, 3])
        llm.restore(snapshot)
        after = llm.eval(ids[9:])

    assert nmse(again, first[13:]) < F16_CACHE
    assert nmse(after, first[9:]) < F16_CACHE


@pytest.mark.parametrize("model", MODELS)
def test_states_move_to_the_cpu_and_back(model, tmp_path):
    ids = list(tiny.ids(model)[:16])
    with opened(model) as llm, opened(model, "cpu") as cpu:
        llm.eval(ids[:12])
        want = llm.eval(ids[12:])
        llm.rewind(12)
        llm.save_state(tmp_path / "state")
        cpu.load_state(tmp_path / "state")
        llm.restore(cpu.snapshot())

        assert np.array_equal(llm.eval(ids[12:]), want)
        with pytest.raises(LayoutError, match="another model"):
            llm.restore(npurt_snapshot_of_another(model))


def npurt_snapshot_of_another(model):
    other = "qwen3moe" if model == "llama3" else "llama3"
    with opened(other) as llm:
        llm.eval([1, 2])
        return llm.snapshot()


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_a_full_context_makes_room(model):
    with opened(model, context_shift=True) as llm:
        for token in range(100):
            assert np.isfinite(llm.eval_last([token])).all()
        assert 32 <= llm.n_tokens <= 64
        assert llm.history[-1] == 99


def test_threads_and_drafts():
    with opened("llama3") as llm:
        assert llm.threads == 1
        want = llm.generate([1, 2, 3, 1, 2, 3], max_tokens=16, temperature=0)
    with opened("llama3", draft="lookup") as llm:
        llm.speculator.controller = Controller(4, fixed=True)
        assert llm.generate([1, 2, 3, 1, 2, 3], max_tokens=16, temperature=0) == want
        assert llm.speculator.controller.speculation.drafted > 0
    with pytest.raises(SettingError, match="numpy cannot draft"):
        opened("llama3", "cpu", draft=path("llama3"), draft_device="numpy")


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_drafts_do_not_change_the_text_of_a_device_that_runs_graphs(model, kind):
    """The draft model runs on the CPU, or on such a device with the head on the CPU."""
    draft, prompt = "lookup" if kind == "lookup" else path(model), [1, 2, 3, 4, 1, 2, 3, 4]
    with opened(model, Partial()) as llm:
        want = llm.generate(prompt, max_tokens=20, temperature=0)
        assert llm.weight_bytes > 0

    with opened(model, Partial(), draft=draft) as llm:
        llm.speculator.controller = Controller(4, fixed=True)
        assert llm.generate(prompt, max_tokens=20, temperature=0) == want
        assert llm.speculator.controller.speculation.drafted > 0


def test_matrices_of_a_device_that_runs_graphs_are_its_own():
    """The host cannot use numpy's matrices; the report counts the host's calls as numpy's."""
    with opened("llama3") as llm:
        assert llm.weight_bytes == sum(
            cost(op, 1).weight_bytes for op in llm.model.setup.graph.graph.ops
            if isinstance(op, ops.MatMul)
        )  # fmt: skip
        for call in (
            lambda: llm.model.head("draft", 1),
            lambda: llm.model.output_matrix(1),
        ):
            with pytest.raises(UnsupportedOp, match="numpy runs graphs") as caught:
                call()
            assert "CPU" in caught.value.remedy
        llm.model.account("draft").calls += 3
        (row,) = [row for row in llm.report().rows if row.op == "draft"]
    assert (row.actual, row.calls, row.offloaded) == ("numpy", 3, True)


def test_matmul_on_numpy_is_numpys():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((3, 64), np.float32), rng.standard_normal((32, 64), np.float32)
    packed = npurt.QTensor.quantize(w, "q8_0")

    y = npurt.matmul(x, packed.T, device="numpy", verify="always")

    assert np.allclose(y, x @ packed.dequantize().T, atol=1e-4)


# --- Without compiled code ------------------------------------------------------------------------

NO_LIBRARY = """
import sys
sys.modules["cffi"] = sys.modules["_cffi_backend"] = None  # to import them is an error
import npurt
with npurt.Llama(sys.argv[1], sys.argv[2], n_ctx=32, progress=False) as llm:
    text = llm.generate("a b", max_tokens=4, temperature=0.8, seed=1)
    print(text is not None, llm.device.caps.name)
"""


@pytest.mark.parametrize("device", ["numpy", "auto"])
def test_a_model_runs_where_nothing_was_compiled(device, tmp_path):
    """Examples are a checkout that was not built and a system that npurt's C does not support."""
    package = Path(npurt.__file__).parent
    shutil.copytree(
        package, tmp_path / "npurt", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )

    done = subprocess.run(
        [sys.executable, "-c", NO_LIBRARY, path("llama3"), device],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "True numpy\n", done.stderr
    assert ("slow" in done.stderr) == (device == "auto")


# --- Devices that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
@pytest.mark.parametrize("failing", [1, 4, 11])
def test_a_device_that_fails_in_a_text_does_not_change_it(model, failing):
    device, file = Partial((ops.Softcap,), failing=(failing,)), tiny.path(model, "f32")
    with npurt.Llama(file, "numpy", n_ctx=64, progress=False) as llm:
        want = llm.generate([1, 2, 3], max_tokens=12, temperature=0)

    with npurt.Llama(file, device, n_ctx=64, progress=False) as llm:
        assert llm.generate([1, 2, 3], max_tokens=12, temperature=0) == want
        assert "partial was opened again and its weights uploaded: it died" in str(llm.report())


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
def test_a_device_that_is_lost_for_good_does_not_change_a_text(model):
    device, file = Partial((ops.Softcap,), failing=(4, 5, 6)), tiny.path(model, "f32")
    with npurt.Llama(file, "numpy", n_ctx=64, progress=False) as llm:
        want = llm.generate([1, 2, 3], max_tokens=12, temperature=0)

    with npurt.Llama(file, device, n_ctx=64, progress=False) as llm:
        assert llm.generate([1, 2, 3], max_tokens=12, temperature=0) == want
        assert "cpu takes over from partial: it died" in str(llm.report())


def test_strict_mode_ends_with_the_device():
    device = Partial(failing=(3, 4, 5))
    with opened("llama3", device, strict=True) as llm, pytest.raises(NotOffloaded, match="it died"):
        llm.generate([1, 2, 3], max_tokens=12, temperature=0)


def test_an_interrupted_run_is_mended(monkeypatch):
    ids = list(tiny.ids("qwen35")[:16])
    with opened("qwen35") as llm:
        want = llm.eval(ids)
        llm.rewind(8)

        def interrupted(self, values, rows):
            run(self, values, rows)
            raise KeyboardInterrupt

        run = ReferenceSegment.run
        monkeypatch.setattr(ReferenceSegment, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.eval(ids[8:])
        monkeypatch.setattr(ReferenceSegment, "run", run)

        assert llm.n_tokens == 8
        assert nmse(llm.eval(ids[8:]), want[8:]) < F16_CACHE


# --- Devices of other packages --------------------------------------------------------------------


def test_devices_of_other_packages_are_found_by_their_entry_points(monkeypatch):
    entry = metadata.EntryPoint(
        "partial", "tests.runtime.test_execute:open_partial", registry.GROUP
    )
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [entry] * (group == registry.GROUP)
    )

    with npurt.open_device("partial:3") as device:
        assert device.caps.name == "partial:3"
    assert "partial" in {found.device for found in npurt.devices()}
    with pytest.raises(UnknownDevice, match="'other' is not a device name"):
        npurt.open_device("other")


def test_an_entry_point_that_cannot_be_imported_is_said(monkeypatch):
    entry = metadata.EntryPoint("broken", "no_such_package:open", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])

    with pytest.raises(npurt.DeviceNotFound, match="no_such_package"):
        npurt.open_device("broken")


def test_a_driver_error_while_compiling_is_an_error():
    class Broken(Partial):
        def compile(self, part, weights, limits):
            raise DriverError("no driver", remedy="load it", call="open", code=errno.ENODEV)

    with pytest.raises(DriverError, match="no driver"):
        opened("llama3", Broken())


@pytest.mark.parametrize(
    "device", ["numpy", Partial((ops.Attention, ops.MatMul))], ids=["numpy", "partial"]
)
def test_a_dropped_model_gives_its_segments_back_at_once(device):
    """Weights are large, so the release must not wait for the garbage collector."""
    llm = opened("qwen35", device)
    llm.eval([1, 2, 3])
    segments = [weakref.ref(part.segment) for part in llm.model.executor.parts]
    assert len(segments) > (device != "numpy")
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [segment() for segment in segments] == [None] * len(segments)
    finally:
        gc.enable()
