"""Old names work, and say the new ones."""

import importlib
import sys

import pytest

from npurt import moved


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("npurt.hexagon.control", "capabilities", "npurt.hexagon.fastrpc.control"),
        ("npurt.hexagon.lib", "find", "npurt.hexagon.fastrpc.lib"),
        ("npurt.rknpu.detect", "open_driver", "npurt.rknpu.driver.detect"),
        ("npurt.rknpu.driver", "Work", "npurt.rknpu.driver.base"),
        ("npurt.rknpu.forms", "FORMS", "npurt.rknpu.isa.formats"),
        ("npurt.rknpu.images", "features_image", "npurt.rknpu.plan.images"),
        ("npurt.rknpu.plan", "plan_weights", "npurt.rknpu.plan.tiling"),
        ("npurt.rknpu.proof", "Role", "npurt.rknpu.plan.proof"),
        ("npurt.rknpu.system", "Simulator", "npurt.rknpu.driver.system"),
    ],
)
def test_an_old_name_is_the_new_one_and_warns(old, name, new, monkeypatch):
    if old in moved_modules():
        monkeypatch.delitem(sys.modules, old, raising=False)

    with pytest.warns(DeprecationWarning, match=f"{old}.* is now {new}"):
        found = getattr(importlib.import_module(old), name)

    assert found is getattr(importlib.import_module(new), name)


def moved_modules():
    return [name for each in sys.meta_path for name in getattr(each, "_names", ())]


def test_a_name_that_never_was_is_an_error():
    find = moved.attributes("here", {"old": "there"})

    with pytest.raises(AttributeError, match="'here' has no attribute 'older'"):
        find("older")
    with pytest.raises(ModuleNotFoundError, match=r"npurt\.rknpu\.never"):
        importlib.import_module("npurt.rknpu.never")
