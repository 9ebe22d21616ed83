"""Test boards with Rockchip chips: the doctor finds the first cause and names the remedy."""

import json

import pytest

from npurt.doctor import bundle
from npurt.doctor.anonymous import anonymised
from npurt.doctor.check import diagnose, start_here
from npurt.doctor.system import Recorder, Replay, wrong
from npurt.rknpu.doctor import checks as doctor
from npurt.rknpu.doctor import trial as doctor_trial
from npurt.runtime.api import doctor as all_kinds
from tests.doctor import boards, rockchip

SITUATIONS = [*rockchip.WORKING, *rockchip.REPORTS]


def examine(system):
    recorder = Recorder(system)
    return diagnose(doctor.CHECKS, recorder), recorder


def results(findings):
    return {f.check.name: f.result for f in findings}


@pytest.mark.parametrize("name", rockchip.REPORTS)
def test_the_first_cause_is_found_with_what_mends_it(name, tmp_path):
    report = rockchip.REPORTS[name]

    findings, _ = examine(rockchip.Tree(name, tmp_path))
    first = start_here(findings)

    assert (first and first.check.name) == report["first"], first
    told = first.result if first else results(findings)[report["warns"]]
    assert told.state == ("fail" if first else "warn")
    assert report["what"] in told.what
    assert report["command"] in told.command


@pytest.mark.parametrize("name", [n for n, r in rockchip.REPORTS.items() if not r["first"]])
def test_what_only_slows_it_down_is_the_only_warning(name, tmp_path):
    findings, _ = examine(rockchip.Tree(name, tmp_path))

    odd = {name for name, result in results(findings).items() if result.state != "ok"}
    assert odd == {rockchip.REPORTS[name]["warns"]}


@pytest.mark.parametrize("name", rockchip.WORKING)
def test_a_board_that_works_has_nothing_to_mend(name, tmp_path):
    findings, _ = examine(rockchip.Tree(name, tmp_path))

    assert {f.result.state for f in findings} == {"ok"}
    assert len(findings) == len(doctor.CHECKS)


def test_there_are_enough_situations_and_each_has_a_source():
    assert len(rockchip.REPORTS) >= 20
    assert all(report["source"] for report in rockchip.REPORTS.values())
    firsts = {report["first"] or report["warns"] for report in rockchip.REPORTS.values()}
    assert firsts == {check.name for check in doctor.CHECKS} - {"board"}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_evidence_alone_gives_the_same_diagnosis(name, tmp_path):
    findings, recorder = examine(rockchip.Tree(name, tmp_path))
    recorded = json.loads(json.dumps(recorder.evidence))

    assert wrong(recorded) is None
    again, _ = examine(Replay(recorded))
    assert results(again) == results(findings)
    anonymous, _ = examine(Replay(anonymised(recorded, {"orange": "HOST"})))
    assert [f.result.state for f in anonymous] == [f.result.state for f in findings]


@pytest.mark.parametrize("name", rockchip.REPORTS)
def test_every_finding_has_evidence_and_what_is_not_right_a_command(name, tmp_path):
    findings, _ = examine(rockchip.Tree(name, tmp_path))

    for finding in findings:
        if finding.result.state != "skip":
            assert finding.evidence, finding.check.name
        if finding.result.state in ("fail", "warn"):
            assert finding.result.command


def test_the_version_may_be_known_from_three_places(tmp_path):
    """The sources are debugfs, the kernel's log and the message of opening the device."""
    tree = rockchip.Tree("vendor", tmp_path)
    assert results(examine(tree)[0])["version"].what == "rknpu 0.9.8"
    tree.write(tmp_path, "/proc/rknpu/version", "RKNPU driver: v0.9.7")
    assert results(examine(tree)[0])["version"].what == "rknpu 0.9.7"
    (tmp_path / "proc/rknpu/version").unlink()
    (tmp_path / "dev/kmsg").unlink()
    assert results(examine(tree)[0])["version"].what == "rknpu 0.9.8"

    silent = Replay({k: v for k, v in examine(tree)[1].evidence.items() if k != "probe rknpu"})
    assert results(examine(silent)[0])["version"].state == "skip"


@pytest.mark.parametrize(
    ("chip", "state"),
    [
        ("rockchip,rk3588s", "ok"),
        ("rockchip,rk3582", "ok"),
        ("rockchip,rk3583", "ok"),
        ("rockchip,rk3568", "fail"),
        ("rockchip,rv1106", "fail"),
        ("rockchip,something", "fail"),
    ],
)
def test_the_chip_must_be_of_the_rk3588s_family(chip, state, tmp_path):
    tree = rockchip.Tree("mainline", tmp_path)
    tree.write(tmp_path, "/sys/firmware/devicetree/base/compatible", f"maker,board\0{chip}")

    assert results(examine(tree)[0])["chip"].state == state


def test_a_governor_that_keeps_full_speed_is_none_to_mend(tmp_path):
    tree = rockchip.Tree("vendor", tmp_path)
    for folder, maximum in (("fdab0000.npu", "1000000000"), ("dmc", "2112000000")):
        tree.write(tmp_path, f"/sys/class/devfreq/{folder}/governor", "userspace")
        tree.write(tmp_path, f"/sys/class/devfreq/{folder}/cur_freq", maximum)

    assert {result.state for result in results(examine(tree)[0]).values()} == {"ok"}


def test_a_node_that_may_only_be_read_is_of_no_use(tmp_path):
    tree = rockchip.Tree("mainline", tmp_path)
    tree._nodes["/dev/accel/accel0"] = "crw-r--r-- root:render r"

    assert start_here(examine(tree)[0]).check.name == "node"


def test_a_damaged_configuration_is_none(tmp_path):
    tree = rockchip.Tree("rock5b-not-loaded", tmp_path)
    (tmp_path / "boot/config-6.18.0").unlink()
    (tmp_path / "proc/config.gz").write_bytes(b"no gzip")
    assert "has no driver" in results(examine(tree)[0])["driver"].what
    tree.write(tmp_path, "/proc/config.gz", "CONFIG_DRM_ACCEL_ROCKET=m\n")
    assert results(examine(tree)[0])["driver"].command == "sudo modprobe rocket"
    whole = (tmp_path / "proc/config.gz").read_bytes()
    (tmp_path / "proc/config.gz").write_bytes(whole[:-9])
    assert "has no driver" in results(examine(tree)[0])["driver"].what


# --- The command ----------------------------------------------------------------------------------


def test_each_board_is_examined_for_the_npu_that_it_can_have(tmp_path):
    looked_for = all_kinds.checklists()
    hexagon, rknpu = all_kinds.examine(
        looked_for, Recorder(rockchip.Tree("mainline", tmp_path / "rock"))
    )
    assert hexagon.absent
    assert rknpu.runs
    hexagon, rknpu = all_kinds.examine(
        looked_for, Recorder(boards.tree("working", tmp_path / "dragon"))
    )
    assert hexagon.runs
    assert "no board with a Rockchip chip" in rknpu.absent
    assert not rknpu.runs


@pytest.mark.parametrize("name", ["mainline", "rk3576", "ddr-parked", "in-use"])
def test_a_board_is_judged_from_its_bundle(name, npurt, tmp_path):
    looked_for = all_kinds.checklists("rknpu")
    system = Recorder(rockchip.Tree(name, tmp_path))
    all_kinds.examine(looked_for, system)
    looked_for[0].collect(system)
    path = tmp_path / "b.tar.gz"
    bundle.write(path, system.evidence, "report", {"process": "HOST"})

    result = npurt("doctor", "-dev", "rknpu", "--from", path)

    report = rockchip.REPORTS.get(name, {"first": None})
    assert result.code == (1 if report["first"] else 0)
    assert result.out.count("start here") == (1 if report["first"] else 0)
    if report["first"]:
        assert f"start here: {report['first']}: " in result.out


@pytest.mark.parametrize("name", ["rknpu:sim", "rknpu:sim-vendor"])
def test_the_simulator_passes(npurt, name):
    result = npurt("doctor", "-dev", name, "--json")

    (kind,) = json.loads(result.out)["kinds"]
    assert result.code == 0
    assert kind["simulated"] is True
    assert [(c["name"], c["state"]) for c in kind["checks"]] == [
        ("alone", "ok"), ("open", "ok"), ("products", "ok")
    ]  # fmt: skip


def test_a_machine_of_another_kind_has_none_of_it(npurt):
    result = npurt("doctor", "-dev", "rknpu")

    assert result.code == 1
    assert "no board with a Rockchip chip" in result.out
    assert "rknpu:sim" in result.out


def test_a_device_that_there_is_not_is_refused(npurt):
    assert "remedy: use rknpu" in npurt("doctor", "-dev", "rknpu:5").err


# --- The trial ------------------------------------------------------------------------------------


def seen(trial):
    return results(diagnose(doctor.SIMULATED, Recorder(Replay({"probe rknpu": trial}))))


def test_a_simulated_npu_that_lies_is_seen(monkeypatch):
    monkeypatch.setenv("NPURT_SIM_RKNPU", "fault=flip@submit")

    found = seen(doctor_trial.trial("rknpu:sim"))

    assert found["open"].state == "ok"
    assert found["products"].state == "fail"
    assert "identity 1x32x32 wrong 1 of 32 wrong" in found["products"].what


def test_a_simulated_npu_that_is_not_there_is_said_so(monkeypatch):
    monkeypatch.setenv("NPURT_SIM_RKNPU", "nodes=none")

    found = seen(doctor_trial.trial("rknpu:sim"))

    assert found["open"].state == "fail"
    assert "no RK3588 NPU" in found["open"].what


def test_a_step_that_does_not_end_is_not_waited_for(monkeypatch):
    monkeypatch.setenv("NPURT_SIM_RKNPU", "hang_ms=60000 fault=timeout@submit:1+")

    trial = doctor_trial.trial("rknpu:sim", seconds=6)

    assert "did not end within 6 s" in trial["ended"]
    assert seen(trial)["products"].state == "fail"


def test_a_trial_that_dies_is_said_so(monkeypatch):
    monkeypatch.setattr(doctor_trial, "_START", "raise SystemExit(3)")

    trial = doctor_trial.trial("rknpu:sim")

    assert trial == {"opened": {}, "trials": [], "ended": "the trial ended with status 3"}
    assert "status 3" in seen(trial)["open"].what


@pytest.mark.parametrize("nonsense", [{"opened": 5}, {"opened": {}, "trials": {}}, {"trials": [1]}])
def test_evidence_that_makes_no_sense_does_no_harm(nonsense):
    assert seen(nonsense)["open"].state == "fail"
