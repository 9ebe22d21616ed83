"""Test that each device string of the Hexagon has exactly one meaning."""

import pytest

from npurt.errors import DeviceNotFound
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.names import SIMULATED_ARCHS, Name, parse
from tools import build


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hexagon", Name("hexagon:0", "cdsp", None)),
        ("hexagon:0", Name("hexagon:0", "cdsp", None)),
        ("hexagon:0/0", Name("hexagon:0/0", "cdsp", 0)),
        ("hexagon:0/3", Name("hexagon:0/3", "cdsp", 3)),
        ("hexagon:1", Name("hexagon:1", "cdsp1", None)),
        ("hexagon:sim", Name("hexagon:sim", "cdsp", None, True)),
        ("hexagon:sim-v68", Name("hexagon:sim-v68", "cdsp", None, True, 68)),
        ("hexagon:sim-v81", Name("hexagon:sim-v81", "cdsp", None, True, 81)),
    ],
)
def test_a_device_string_names_dsp_session_and_simulation(text, name):
    assert parse(text) == name


@pytest.mark.parametrize(
    "text",
    ["hexagon:", "hexagon:2", "hexagon:0/", "hexagon:0/12", "hexagon:simv68", "hexagon:sim-v",
     "hexagon:sim-68", "hexagon:-1", "Hexagon", "hexagon:0 ", "hexagon:sim/1", "",
     "hexagon:sim-v70", "hexagon:sim-v60", "hexagon:" + 5000 * "1", "hexagon:\u0661"],
)  # fmt: skip
def test_what_is_none_is_refused_with_what_would_be(text):
    with pytest.raises(DeviceNotFound, match="names no Hexagon") as caught:
        parse(text)
    assert "hexagon:0/1" in caught.value.remedy


def test_device_strings_and_the_simulator_know_the_same_versions(simulator):
    control = lib.load([lib.simulator()]).c.npurt_sim_control

    accepted = [n for n in range(60, 100) if control(f"arch=v{n}".encode()) == 0]

    assert accepted == list(SIMULATED_ARCHS)
    assert {int(arch.removeprefix("v")) for arch in build.ARCHS} <= set(SIMULATED_ARCHS)
