"""Test reported boards: the doctor finds the first cause and names the remedy."""

import json

import pytest

from npurt.doctor.anonymous import anonymised
from npurt.doctor.check import diagnose, start_here
from npurt.doctor.system import Recorder, Replay, wrong
from npurt.hexagon.doctor import checks
from tests.doctor import boards


def examine(system):
    recorder = Recorder(system)
    return diagnose(checks.CHECKS, recorder), recorder


def states(findings):
    return {f.check.name: f.result.state for f in findings}


@pytest.mark.parametrize("name", boards.REPORTS)
def test_the_first_cause_is_found_with_what_mends_it(name, tmp_path):
    known = boards.board(name)

    findings, _ = examine(boards.tree(name, tmp_path))
    first = start_here(findings)

    if known["first"] is None:
        assert first is None, first
        return
    assert first is not None
    assert first.check.name == known["first"], first.result
    assert known["command"] in first.result.command


def test_there_are_enough_boards():
    assert len(boards.REPORTS) >= 18
    assert all(report["source"] for report in boards.REPORTS.values())


def test_a_board_that_works_has_nothing_to_mend(tmp_path):
    findings, _ = examine(boards.tree("working", tmp_path))

    assert states(findings) == {c.name: "ok" for c in checks.CHECKS} | {"banks": "skip"}


@pytest.mark.parametrize("name", ["working", *boards.REPORTS])
def test_the_evidence_alone_gives_the_same_diagnosis(name, tmp_path):
    """The diagnosis also stays the same as JSON, and with this board's words replaced."""
    findings, recorder = examine(boards.tree(name, tmp_path))
    recorded = json.loads(json.dumps(recorder.evidence))
    anonymous = anonymised(recorded, {"dragon": "HOST"})

    assert wrong(recorded) is None
    again, _ = examine(Replay(recorded))
    assert [(f.check.name, f.result, f.evidence) for f in again] == [
        (f.check.name, f.result, f.evidence) for f in findings
    ]
    assert states(examine(Replay(anonymous))[0]) == states(findings)


@pytest.mark.parametrize("name", boards.REPORTS)
def test_every_finding_has_evidence_and_every_failure_a_command(name, tmp_path):
    findings, _ = examine(boards.tree(name, tmp_path))

    for finding in findings:
        if finding.result.state != "skip":
            assert finding.evidence, finding.check.name
        if finding.result.state == "fail":
            assert finding.result.command


def test_evidence_of_no_machine_is_that_of_a_simulator():
    first = start_here(examine(Replay({}))[0])

    assert first.check.name == "machine"
    assert "does not name its machine" in first.result.what
    assert "-dev hexagon:sim --from" in first.result.command


# --- one change to a board that works ------------------------------------------------------------


def first_of(tmp_path, **files):
    """Return the first finding after changes to files; None removes a file."""
    tree = boards.tree("working", tmp_path)
    for path, text in files.items():
        here = tmp_path / path
        if text is None:
            here.unlink()
        else:
            here.write_text(text)
    findings, _ = examine(tree)
    return start_here(findings), {f.check.name: f.result for f in findings}


REMOTEPROC = "sys/class/remoteproc/remoteproc1"


def test_a_kernel_that_does_not_know_the_dsp_is_the_first_cause(tmp_path):
    first, _ = first_of(tmp_path, **{f"{REMOTEPROC}/name": "wpss"})

    assert first.check.name == "remoteproc"
    assert "modprobe qcom_q6v5_pas" in first.result.command


def test_a_driver_without_the_dsp_is_told_from_no_driver(tmp_path):
    nodes = [f"sys/class/misc/fastrpc-cdsp{suffix}/dev" for suffix in ("", "-secure")]
    for node in nodes:
        (tmp_path / node).parent.mkdir(parents=True)
    tree = boards.tree("working", tmp_path)
    for node in nodes:
        (tmp_path / node).unlink()
        (tmp_path / node).parent.rmdir()

    first = start_here(examine(tree)[0])

    assert first.check.name == "driver"
    assert "has no node for the CDSP" in first.result.what


def test_nodes_that_are_not_there_are_asked_of_udev(tmp_path):
    tree = boards.tree("working", tmp_path)
    tree._nodes.clear()
    for node in ("fastrpc-cdsp", "fastrpc-cdsp-secure"):
        (tmp_path / "dev" / node).unlink()

    first = start_here(examine(tree)[0])

    assert first.check.name == "node"
    assert "udevadm trigger" in first.result.command


def test_no_daemon_is_a_warning(tmp_path):
    first, results = first_of(tmp_path, **{"proc/100/comm": "other"})

    assert first is None
    assert results["daemon"].state == "warn"


@pytest.mark.parametrize(
    ("state", "command"),
    [("offline", "echo start"), ("crashed", "echo stop"), ("suspended", "echo start")],
)
def test_a_dsp_that_does_not_run_is_started(state, command, tmp_path):
    first, _ = first_of(tmp_path, **{f"{REMOTEPROC}/state": state})

    assert first.check.name == "running"
    assert state in first.result.what
    assert command in first.result.command


def test_a_dsp_that_is_attached_runs(tmp_path):
    first, _ = first_of(tmp_path, **{f"{REMOTEPROC}/state": "attached"})

    assert first is None


def test_the_firmware_may_be_packed(tmp_path):
    import lzma

    tree = boards.tree("working", tmp_path)
    path = tmp_path / "lib/firmware/qcom/qcs6490/radxa/dragon-q6a/cdsp.mbn"
    path.with_name("cdsp.mbn.xz").write_bytes(lzma.compress(path.read_bytes()))
    path.unlink()

    findings, _ = examine(tree)

    by_name = {f.check.name: f.result for f in findings}
    assert by_name["firmware"].what.endswith("cdsp.mbn.xz")
    assert by_name["build"].what == "CDSP.HT.2.5.c4-00004-KODIAK-1"


def test_packed_firmware_that_is_damaged_is_not_compared(tmp_path):
    tree = boards.tree("working", tmp_path)
    path = tmp_path / "lib/firmware/qcom/qcs6490/radxa/dragon-q6a/cdsp.mbn"
    path.with_name("cdsp.mbn.xz").write_bytes(b"no xz")
    path.unlink()

    findings, _ = examine(tree)

    assert states(findings)["build"] == "skip"
    assert start_here(findings) is None


def test_a_shell_on_the_users_path_comes_first(tmp_path):
    """Debian's build of the library also searches this path first."""
    tree = boards.tree("working", tmp_path, DSP_LIBRARY_PATH="/opt/dsp;/opt/more")
    shell = tmp_path / "opt/more/fastrpc_shell_unsigned_3"
    shell.parent.mkdir(parents=True)
    shell.write_bytes(b"CDSP.HT.9.9-00009-OTHER-1\0")

    findings, _ = examine(tree)

    assert start_here(findings).check.name == "build"
    assert "CDSP.HT.9.9-00009-OTHER-1" in start_here(findings).result.what
