"""Test that a row of the table of devices is enough: all commands work with the new device."""

import json
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

import npurt as package
from npurt.backend import Backend
from npurt.backend.estimates import Estimate
from npurt.backend.probe import DeviceProbe, Outcome
from npurt.doctor.check import DoctorCheck, fail, ok
from npurt.doctor.checklist import Checklist
from npurt.reference.device import ReferenceDevice
from npurt.runtime.open import registry
from tests.llm import tiny


class TenTokensASecond:
    title = "a breadboard at 5 MHz"
    facts = property(lambda self: {"mhz": 5})

    def seconds(self, work, tokens):
        assert work.layers > 0
        assert {weight.scheme for weight in work.weights} == {"q8_0"}
        return Estimate(tokens / 11, tokens / 10, tokens / 9)


class Estimator:
    title = "newnpu (v1)"
    note = "a newnpu also computes norms"
    boards = (TenTokensASecond(),)

    def why_not(self, op):
        return "K is odd" if op.k == 288 else None

    def weight_bytes(self, op):
        return op.n * op.k


def opened(name, threads):
    device = ReferenceDevice()
    device.caps = type(device.caps)(name, "made for a test", simulated=False)
    return device


def checklist(device):
    checks = [
        DoctorCheck("plugged", "the NPU is plugged in", lambda system: ok("it is")),
        DoctorCheck(
            "fan", "its fan turns", lambda system: fail("it does not turn", "turn it by hand")
        ),
    ]
    return Checklist(device, checks, lambda system: None)


def probe(device, unsafe):
    outcomes = [Outcome("first", "1x1x1", "ok", "", 1e-3)]
    outcomes += [Outcome("second", "2x2x2", "wrong", "all of it")] * unsafe
    return DeviceProbe("sim" in device, "times of a clock", iter(outcomes))


ROW = Backend("newnpu", opened, True, ("newnpu:sim",), checklist, probe, Estimator)


@pytest.fixture(params=["in npurt", "of another package"])
def row(request, monkeypatch):
    """Add the row to the table, or as the entry point of a package."""
    if request.param == "in npurt":
        monkeypatch.setitem(registry.BACKENDS, "newnpu", lambda: ROW)
        return request.param
    entry = metadata.EntryPoint("newnpu", f"{__name__}:ROW", registry.GROUP)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [entry] * (group == entry.group)
    )
    return request.param


@pytest.mark.usefixtures("row")
def test_it_opens_multiplies_and_is_listed(npurt):
    weight = package.pack(np.eye(32, dtype=np.float32), "f32", device="newnpu:x")
    assert weight.device == "newnpu:x"
    assert (np.ones(32, np.float32) @ weight == 1).all()
    assert "newnpu    yes  made for a test" in npurt("devices").out
    registry.require_known("newnpu:x")


@pytest.mark.usefixtures("row")
def test_the_doctor_runs_its_checks(npurt):
    code, said, _ = npurt("doctor", "-dev", "newnpu")
    assert code == 1
    assert "newnpu\n  ok    plugged       it is\n  FAIL  fan" in said
    assert "start here: fan: turn it by hand" in said
    every = json.loads(npurt("doctor", "--json").out)
    assert [kind["kind"] for kind in every["kinds"]] == ["hexagon", "rknpu", "newnpu"]


@pytest.mark.usefixtures("row")
def test_its_probe_runs(npurt):
    said = npurt("probe", "-dev", "newnpu:sim").out
    assert said.startswith("newnpu:sim (simulated)\n")
    assert said.endswith("all 1 right; times of a clock\n")
    code, said, _ = npurt("probe", "-dev", "newnpu", "--unsafe")
    assert code == 1
    assert "1 of 2 not right; start with the first: second; times of a clock" in said


@pytest.mark.usefixtures("row")
def test_plan_has_its_share_and_its_speed(npurt):
    path = tiny.path(kind="q8_0")
    said = npurt("plan", path, "--quick").out
    assert "newnpu (v1): 19 of 22 weights, 0 MB (3 on the CPU: K is odd)" in said
    assert "  a breadboard at 5 MHz: prompt of 128 10 (9 to 11), decoding 10 (9 to 11)" in said
    assert "a Hexagon also computes delta nets; a newnpu also computes norms" in said
    speed = json.loads(npurt("plan", path, "--quick", "--json").out)["newnpu_speed"]
    assert speed["mhz"] == 5
    assert speed["decode"] == pytest.approx([9, 10, 11])


def test_help_and_messages_name_a_new_npu(monkeypatch, npurt):
    monkeypatch.setitem(registry.BACKENDS, "newnpu", lambda: ROW)
    assert registry.usual_names()[-1] == "newnpu:sim"
    with pytest.raises(package.UnknownDevice, match="no device of mine") as caught:
        registry.require_known("no device of mine")
    assert "newnpu" in caught.value.remedy
    assert "newnpu:sim" in " ".join(npurt("doctor", "-h").out.split())
    assert "newnpu:sim" in " ".join(npurt("probe", "-h").out.split())


def test_a_device_without_an_ability_is_refused_with_the_devices_that_have_it(npurt):
    assert "npurt has no trials for device 'cpu'" in npurt("probe", "-dev", "cpu").err
    said = npurt("doctor", "-dev", "cpu").err
    assert "the doctor has no checks for device 'cpu'" in said
    assert "use hexagon, rknpu, hexagon:sim or rknpu:sim" in said


def test_a_package_that_cannot_be_imported_stops_no_other_device(monkeypatch):
    entry = metadata.EntryPoint("broken", "no_such_package:ROW", registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    assert [each.name for each in registry.backends()] == ["cpu", "hexagon", "rknpu", "numpy"]
    with pytest.raises(package.DeviceNotFound, match="no_such_package"):
        registry.backend_of("broken")


def test_a_function_of_another_package_is_a_row_that_only_opens(monkeypatch):
    entry = SimpleNamespace(name="simple", load=lambda: lambda name: name.upper())
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    found = registry.backend_of("simple:x")
    assert found.open("simple:x", None) == "SIMPLE:X"
    assert found.checklist is found.probe is found.estimator is None
