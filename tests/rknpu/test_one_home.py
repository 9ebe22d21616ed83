"""Test that values which two languages or two layers each define are equal."""

import re
from pathlib import Path

import pytest

from npurt.cli import main
from npurt.rknpu.device import quantise
from npurt.rknpu.driver import uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.names import NAMES
from npurt.rknpu.driver.native.host import HEADER, lib
from npurt.runtime.open.registry import simulators

SIM = Path(__file__).resolve().parents[2] / "sim/rknpu"


def test_remainders_have_the_same_steps_in_python_and_c():
    assert lib().NPURT_RK_REMAINDER_STEPS == quantise.REMAINDER_STEPS == 2 * 127
    assert not [
        path.name for path in HEADER.parent.glob("*.c") if re.search(r"\b254\b", path.read_text())
    ]


def test_the_simulated_devices_are_those_of_the_registry():
    assert [name for name in NAMES if "sim" in name] == [s for s in simulators() if "rknpu" in s]
    assert NAMES == ("rknpu", "rknpu:0", "rknpu:sim", "rknpu:sim-vendor")


@pytest.mark.parametrize("verb", [("probe",), ("regcmd", "run")])
def test_the_help_of_the_command_line_names_the_devices(verb, capsys):
    with pytest.raises(SystemExit):
        main([*verb, "-h"])
    said = capsys.readouterr().out

    named = set(re.findall(r"rknpu(?::[\w-]+)?", " ".join(said.split())))
    assert named == set(NAMES) - {"rknpu:0"}


@pytest.mark.parametrize(("version", "text"), [(906, "0.9.6"), (10203, "1.2.3"), (9910, "0.99.10")])
def test_a_version_of_the_vendors_driver_is_written_as_people_do(version, text):
    assert uapi_rknpu.release(version) == text


def test_the_simulator_ends_a_job_when_linux_does():
    """The simulator derives the limit from the kernel's source separately."""
    text = (SIM / "driver.h").read_text()

    (ms,) = re.findall(r"JOB_TIMEOUT_MS = (\d+)", text)
    assert int(ms) == uapi_rocket.JOB_TIMEOUT_S * 1000
