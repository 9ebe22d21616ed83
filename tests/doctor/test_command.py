"""Test the command `npurt doctor`."""

import json
import platform

import pytest

from npurt.cli.verbs import doctor as verb
from npurt.doctor import bundle
from npurt.doctor.system import Recorder
from npurt.runtime.api import doctor
from npurt.settings import SETTINGS
from tests.doctor import boards
from tests.hexagon.objects import shared_object


def packed(path, name, tmp_path):
    """Write the bundle that the owner of a board would send."""
    system = Recorder(boards.tree(name, tmp_path / name))
    looked_for = doctor.checklists("hexagon")
    doctor.examine(looked_for, system)
    looked_for[0].collect(system)
    bundle.write(path, system.evidence, "report", {})
    return path


def test_a_machine_without_a_hexagon_is_told_so_and_offered_the_simulator(npurt, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    result = npurt("doctor")

    assert result.code == 1
    lines = result.out.splitlines()
    first = lines[lines.index("hexagon") + 1]
    assert "FAIL  machine" in first
    assert "this machine is riscv64, not 64-bit ARM" in first
    assert result.out.count("start here") == 1
    assert "-dev hexagon:sim" in result.out


def test_every_setting_is_shown_with_its_value(npurt, monkeypatch):
    monkeypatch.setenv("NPURT_THREADS", "3")

    result = npurt("doctor")

    for setting in SETTINGS:
        assert f"  {setting.name}" in result.out
        assert setting.help in result.out
    assert "NPURT_THREADS = 3  (default 0)" in result.out


def test_the_simulator_passes(npurt):
    result = npurt("doctor", "-dev", "hexagon:sim", "--json")

    (kind,) = json.loads(result.out)["kinds"]
    assert result.code == 0
    assert kind["simulated"] is True
    assert kind["runs"] is True
    assert kind["start_here"] is None
    assert [(c["name"], c["state"]) for c in kind["checks"]] == [
        (name, "ok")
        for name in (
            "library", "capabilities", "skel", "session", "transfer", "mapping", "dspqueue"
        )
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["working", "x86", "q6a-two-builds", "sm8750-colons"])
def test_another_board_is_judged_from_its_bundle(name, npurt, tmp_path):
    path = packed(tmp_path / "b.tar.gz", name, tmp_path)
    known = boards.board(name)

    text = npurt("doctor", "--from", path)
    told = json.loads(npurt("doctor", "--from", path, "--json").out)

    first = known["first"]
    assert text.code == (1 if first else 0)
    assert told["kinds"][0]["start_here"] == first
    assert text.out.count("start here") == (1 if first else 0)
    assert told["settings"] == []  # this machine's settings would mislead
    if first:
        line = next(line for line in text.out.splitlines() if line.startswith("start here"))
        assert line.startswith(f"start here: {first}: ")
        assert known["command"] in line


def test_every_check_tells_scripts_what_it_saw(npurt, tmp_path):
    path = packed(tmp_path / "b.tar.gz", "t14s-two-builds", tmp_path)

    kind, _ = json.loads(npurt("doctor", "--from", path, "--json").out)["kinds"]

    build = next(check for check in kind["checks"] if check["name"] == "build")
    assert build["why"]
    assert build["state"] == "fail"
    seen = {key: value for key, value in build["evidence"].items() if key.startswith("matches ")}
    assert ["CDSP.HT.2.9-00447-HAMOA-2"] in seen.values()
    assert ["CDSP.HT.2.9.c1-00078-HAMOA-1"] in seen.values()


def test_a_bundle_of_this_machine_can_be_sent_and_judged(npurt, tmp_path):
    path = tmp_path / "b.tar.gz"

    here = npurt("doctor", "--bundle", path)
    there = npurt("doctor", "--from", path)

    assert here.code == there.code
    assert f"{path} contains" in here.out
    assert "Please look through" in here.out
    told = here.out.partition(f"\n{path} contains")[0]
    assert told.endswith(there.out)


def test_a_bundle_of_the_simulator_is_judged_as_one(npurt, tmp_path):
    path = tmp_path / "b.tar.gz"

    assert npurt("doctor", "-dev", "hexagon:sim", "--bundle", path, "--json").code == 0
    there = npurt("doctor", "-dev", "hexagon:sim", "--from", path)

    assert there.code == 0
    assert "hexagon:sim (simulated)" in there.out


def test_what_is_no_bundle_is_said_in_one_line(npurt, tmp_path):
    path = tmp_path / "b.tar.gz"
    path.write_text("nothing")

    result = npurt("doctor", "--from", path)

    assert result.code == 1
    assert result.err.startswith(f"npurt: {path} is no bundle")
    assert "remedy: " in result.err


@pytest.mark.parametrize("arguments", [("-dev", "cpu"), ("-dev", "hexagon:x"), ("-dev", "gpu")])
def test_a_device_that_there_is_not_is_refused(arguments, npurt):
    result = npurt("doctor", *arguments)

    assert result.code == 2
    assert "remedy: " in result.err


def test_wrong_usage_has_its_own_status(npurt):
    assert npurt("doctor", "--no-such-option").code == 2


def test_a_board_of_another_maker_is_not_searched_for_a_hexagon(tmp_path):
    tree = boards.tree("working", tmp_path)
    for processor in ("remoteproc0", "remoteproc1"):
        (tmp_path / f"sys/class/remoteproc/{processor}/name").write_text("wpss")
    compatible = tmp_path / "sys/firmware/devicetree/base/compatible"
    compatible.write_text("radxa,rock-5b\0rockchip,rk3588")

    (found,) = doctor.examine(doctor.checklists("hexagon"), Recorder(tree))

    assert found.absent == "this is a board of rockchip: it has no Hexagon"
    assert not found.runs
    assert "board of rockchip" in "\n".join(verb._lines([found], []))


def test_this_machine_reads_the_names_in_the_dsps_files(tmp_path):
    shell = tmp_path / "fastrpc_shell_unsigned_3"
    shell.write_bytes(shared_object(exports=("HAP_mmap",), arch=85, swiv=True))
    machine = doctor.this_machine(doctor.checklists())

    assert machine.read("exports", str(shell)) == {"arch": 85, "names": ["HAP_mmap"]}
    assert machine.read("checksum", str(shell)) == {"section": True}
