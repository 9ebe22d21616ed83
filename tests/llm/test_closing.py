"""Tests of closing: a model releases all resources when it is closed or when opening it fails."""

import gc
from pathlib import Path

import pytest

import npurt
from npurt.errors import DriverError, NpurtError, SettingError
from npurt.llm.session import devices
from tests.llm import tiny
from tests.runtime.fake import FakeDevice

TARGET, DRAFT = (tiny.MODELS / f"spec/spec-{name}-qwen3-q8_0.gguf" for name in ("target", "draft"))
OPTIONS = {"n_ctx": 64, "n_threads": 1, "progress": False}


class Closing(FakeDevice):
    """A device that counts calls of close and optionally raises in them."""

    def __init__(self, error=None):
        super().__init__()
        self.closed = 0
        self._error = error

    def close(self):
        self.closed += 1
        super().close()
        if self._error:
            raise self._error


@pytest.fixture
def opened(monkeypatch):
    """Register a device that can be opened by name; return the list of opened devices."""
    made = []

    def open_device(name, threads):
        made.append(Closing())
        return made[-1]

    monkeypatch.setattr(devices, "open_device", open_device)
    return made


@pytest.mark.parametrize(
    "options",
    [
        {"n_threads": 999},
        {"path": TARGET, "draft": tiny.path()},
        {"path": TARGET, "draft": DRAFT, "draft_max": 999},
        {"path": TARGET, "draft": "lookup", "draft_device": "hexagon"},
    ],
)
def test_a_device_is_closed_at_once_when_the_model_is_refused(opened, options):
    """The device is closed although the test holds the error, which refers to every frame."""
    with pytest.raises(NpurtError) as caught:
        npurt.Llama(**{"path": tiny.path(), "device": "fake"} | OPTIONS | options)

    assert caught.tb
    assert [device.closed for device in opened] == [1] * len(opened)
    assert opened


def test_a_device_that_was_given_stays_open_until_the_model_is_closed():
    device = Closing()
    with pytest.raises(SettingError):
        npurt.Llama(tiny.path(), device, **OPTIONS | {"n_threads": 999})
    assert not device.closed

    with npurt.Llama(tiny.path(), device, **OPTIONS) as llm:
        assert not device.closed
    assert device.closed == 1
    llm.close()
    assert device.closed == 1


def test_a_device_that_cannot_be_closed_keeps_nothing_else_open():
    error = DriverError("it hangs", remedy="wait", call="close", code=5)
    llm = npurt.Llama(tiny.path(), Closing(error), **OPTIONS)
    cpu = llm.model.devices.cpu

    with pytest.raises(DriverError, match="it hangs"):
        llm.close()
    with pytest.raises(NpurtError, match="closed"), cpu.engine:
        pass
    with pytest.raises(SettingError, match="closed"):
        llm.eval([1])
    llm.close()


@pytest.mark.parametrize("draft", [None, "lookup", DRAFT])
def test_a_closed_model_reports_what_it_did_and_has_let_go_of_the_file(draft):
    gc.collect()  # errors of other tests still refer to the files of refused models
    with npurt.Llama(TARGET, draft=draft, **OPTIONS) as llm:
        text = llm.generate([1, 2, 3], max_tokens=8, temperature=0)
        said = str(llm.report())
        assert str(TARGET) in Path("/proc/self/maps").read_text()

    assert text
    assert str(llm.report()) == said
    assert llm.n_tokens == len(llm.history) > 3
    for path in (TARGET, DRAFT):
        assert str(path) not in Path("/proc/self/maps").read_text()


CALLS = {
    "embed": lambda llm: llm.embed("x"),
    "rerank": lambda llm: llm.rerank("x", ["y"]),
    "eval": lambda llm: llm.eval([1]),
    "eval_last": lambda llm: llm.eval_last([1]),
    "generate": lambda llm: llm.generate([1], max_tokens=1),
    "head": lambda llm: llm.model.head("x", 1),
    "load_state": lambda llm: llm.load_state("nothing"),
    "output_matrix": lambda llm: llm.model.output_matrix(1),
    "read": lambda llm: llm.context.read([1]),
    "reset": lambda llm: llm.reset(),
    "restore": lambda llm: llm.restore(None),
    "rewind": lambda llm: llm.rewind(0),
    "rollback": lambda llm: llm.rollback(1),
    "save_state": lambda llm: llm.save_state("/nothing"),
    "snapshot": lambda llm: llm.snapshot(),
    "token_embeddings": lambda llm: llm.token_embeddings([1]),
    "hidden_states": lambda llm: llm.context.hidden_states,
    "weight_bytes": lambda llm: llm.weight_bytes,
}
OF_PARTS = {"head", "hidden_states", "output_matrix", "read"}
HARMLESS = {"apply_chat_template", "chat", "close", "config",
            "context_shift", "detokenize", "device", "file", "fit", "from_pretrained",
            "history", "marks_calls", "n_tokens", "parse_answer",
            "report", "seed", "speculator", "state", "template", "tensors", "threads",
            "timing", "timings", "tokenize", "trace"}  # fmt: skip


def test_every_public_name_that_needs_an_open_model_says_so():
    with npurt.Llama(tiny.path("qwen35", "f32"), **OPTIONS) as llm:
        llm.eval([1, 2, 3])
    named = {n for each in npurt.Llama.__mro__[:-1] for n in vars(each) if n[0] != "_"}

    assert named - HARMLESS == CALLS.keys() - OF_PARTS
    for call in CALLS.values():
        with pytest.raises(SettingError, match="this model is closed"):
            call(llm)
