"""Test that old names work, and that their warnings have the new names."""

import importlib
import sys
from unittest.mock import Mock

import pytest

from npurt import moved
from npurt.delta import DeltaState
from npurt.device import Device
from npurt.llm.decode.model import Llama
from npurt.llm.state.state import Snapshot


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("npurt.device", "DeltaNets", "npurt.delta"),
        ("npurt.device", "state_values", "npurt.delta"),
        ("npurt.hexagon.control", "capabilities", "npurt.hexagon.fastrpc.control"),
        ("npurt.hexagon.lib", "find", "npurt.hexagon.fastrpc.lib"),
        ("npurt.llm.arch", "find", "npurt.llm.arch.families"),
        ("npurt.llm.bench", "bench", "npurt.llm.measure.bench"),
        ("npurt.llm.chat", "ChatTemplate", "npurt.llm.text.chat"),
        ("npurt.llm.config", "Config", "npurt.llm.file.config"),
        ("npurt.llm.context", "Context", "npurt.llm.session.context"),
        ("npurt.llm.gguf", "GGUF", "npurt.llm.file.gguf"),
        ("npurt.llm.model", "Llama", "npurt.llm.decode.model"),
        ("npurt.llm.perplexity", "perplexity", "npurt.llm.measure.perplexity"),
        ("npurt.llm.sampler", "Sampling", "npurt.llm.decode.sampler"),
        ("npurt.llm.state", "Snapshot", "npurt.llm.state.state"),
        ("npurt.llm.tokenizer", "Tokenizer", "npurt.llm.text.tokenizer"),
        ("npurt.llm.weights", "FileWeights", "npurt.llm.arch.weights"),
        ("npurt.rknpu.detect", "open_driver", "npurt.rknpu.driver.detect"),
        ("npurt.rknpu.driver", "Work", "npurt.rknpu.driver.base:CoreTasks"),
        ("npurt.rknpu.driver.base", "Work", "npurt.rknpu.driver.base:CoreTasks"),
        ("npurt.rknpu.forms", "FORMS", "npurt.rknpu.isa.formats"),
        ("npurt.rknpu.images", "features_image", "npurt.rknpu.plan.images"),
        ("npurt.rknpu.plan", "plan_weights", "npurt.rknpu.plan.tiling"),
        ("npurt.rknpu.proof", "Role", "npurt.rknpu.plan.proof"),
        ("npurt.rknpu.system", "Simulator", "npurt.rknpu.driver.system"),
        ("npurt.runtime.devices", "open_device", "npurt.runtime.open.devices"),
        ("npurt.runtime.execute", "Executor", "npurt.runtime.execute.executor"),
        ("npurt.runtime.ledger", "Ledger", "npurt.runtime.report.ledger"),
        ("npurt.runtime.matmul", "matmul", "npurt.runtime.api.matmul"),
    ],
)
def test_an_old_name_is_the_new_one_and_warns(old, name, new, monkeypatch):
    if old in moved_modules():
        monkeypatch.delitem(sys.modules, old, raising=False)

    with pytest.warns(DeprecationWarning, match=f"{old}.* is now {new.replace(':', '.')}"):
        found = getattr(importlib.import_module(old), name)

    module, _, renamed = new.partition(":")
    assert found is getattr(importlib.import_module(module), renamed or name)


def moved_modules():
    return [name for each in sys.meta_path for name in getattr(each, "_names", ())]


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (Llama, "taps", "hidden_states"),
        (Llama, "turn", "lock"),
        (DeltaState, "keep", "checkpoint"),
        (DeltaState, "resume", "restore_checkpoint"),
        (DeltaState, "values", "to_float32"),
        (Device, "news", "events"),
        (Device, "remark", "status_note"),
        (Snapshot, "values", "to_float32"),
    ],
)
def test_an_old_attribute_is_the_new_one_and_warns(owner, old, new):
    thing = Mock(**{new: object()})

    with pytest.warns(DeprecationWarning, match=f"{owner.__name__}.{old} is now .*{new}"):
        found = vars(owner)[old].__get__(thing, owner)

    assert found is getattr(thing, new)
    assert hasattr(owner, new) or new in owner.__annotations__


def test_a_name_that_never_was_is_an_error():
    find = moved.attributes("here", {"old": "there"})

    with pytest.raises(AttributeError, match="'here' has no attribute 'older'"):
        find("older")
    with pytest.raises(ModuleNotFoundError, match=r"npurt\.rknpu\.never"):
        importlib.import_module("npurt.rknpu.never")
