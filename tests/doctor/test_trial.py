"""Test trials of a simulated DSP, working and faulty, and of defective libraries."""

from pathlib import Path

import pytest

from npurt.doctor.check import diagnose, start_here
from npurt.doctor.system import Recorder, Replay
from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.doctor import checks
from npurt.hexagon.doctor.trial import trial
from npurt.hexagon.fastrpc import abi, lib
from tools.build.host_code import build_library, host

STEPS = [
    "library",
    "capabilities",
    "skel",
    "session",
    "echo",
    "copy",
    "shared",
    "mapping",
    "dspqueue",
]


def tried(simulate="", seconds=60, library=""):
    return trial(Connection(library=library or lib.simulator(), simulate=simulate), seconds)


def judged(seen):
    findings = diagnose(checks.SIMULATED, Recorder(Replay({"probe hexagon": seen})))
    return {f.check.name: f.result for f in findings}, start_here(findings)


def test_a_simulated_dsp_passes_every_step():
    seen = tried()
    results, first = judged(seen)

    assert list(seen["steps"]) == STEPS
    assert seen["ended"] == ""
    assert {r.state for r in results.values()} == {"ok"}
    assert first is None
    assert seen["steps"]["session"]["info"]["arch"] == 68
    assert seen["steps"]["shared"]["bytes"] == 64 << 20


def test_a_trial_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    assert list(tried()["steps"]) == STEPS

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arch", [73, 81])
def test_what_a_dsp_says_of_itself_is_told(arch):
    results, _ = judged(tried(f"arch=v{arch}"))

    assert results["capabilities"].what.startswith(f"v{arch}, ")
    assert results["skel"].what == f"libnpurt_skel_v{arch}.so"


def test_a_dsp_that_is_too_old_is_said_to_be():
    results, first = judged(tried("arch=v66"))

    assert first.check.name == "skel"
    assert "v66" in results["skel"].what
    assert results["session"].state == "skip"


@pytest.mark.parametrize(
    ("simulate", "check", "what"),
    [
        ("start=1:0x80000600", "session", "0x80000600"),
        ("start=1:0x8000054f", "session", "0x8000054f"),
        ("open=1", "session", "0x80000406"),
        ("no_symbol=1", "session", "0x80000442"),
        ("crash=2", "session", "DSP"),  # during the first call
        ("crash=50", "transfer", "DSP"),
        ("wrong_byte=50", "transfer", "echoed do not arrive whole"),
        ("wrong_byte=103", "transfer", "copied do not arrive whole"),
        ("no_memory=1+", "transfer", "rpcmem"),
        ("map=2", "mapping", "map"),
    ],
)
def test_an_ill_dsp_fails_where_it_is_ill(simulate, check, what):
    results, first = judged(tried(simulate))

    assert first.check.name == check, results
    assert what in first.result.what
    assert first.result.command
    assert not [
        r for r in results.values() if "did not run" in r.what
    ]  # the message is not about the DSP


def test_a_simulator_without_qemu_is_told_to_install_it(monkeypatch):
    monkeypatch.setenv("NPURT_QEMU_HEXAGON", "/no/such/qemu")
    _, first = judged(tried())

    assert first.check.name == "session"
    assert "/no/such/qemu" in first.result.what
    assert "apt-get install qemu-user" in first.result.command


def test_a_dsp_that_says_it_takes_signed_code_only_is_tried_all_the_same():
    results, first = judged(tried("unsigned=0"))

    assert results["capabilities"].state == "warn"
    assert "signed code only" in results["capabilities"].what
    assert first is None


def test_a_queue_that_nobody_reads_is_no_more_than_a_warning():
    results, first = judged(tried("queue_stuck=1"))

    assert results["dspqueue"].state == "warn"
    assert "so npurt uses plain calls" in results["dspqueue"].what
    assert first is None


def test_a_dsp_that_does_not_answer_is_given_up():
    seen = tried("delay=3+:600000", seconds=2)
    _, first = judged(seen)

    assert list(seen["steps"]) == STEPS[: STEPS.index("echo")]  # the trial did not wait longer
    assert seen["ended"] == "no answer within 2 s: echo"
    assert first.check.name == "transfer"
    assert "no answer within 2 s" in first.result.what


def test_nothing_is_left_of_a_trial(monkeypatch):
    """The trial's process and its simulator inherit a mark; no marked process remains."""
    monkeypatch.setenv("NPURT_TEST_MARK", "of this trial")
    tried("delay=3+:600000", seconds=2)

    marked = [p for p in Path("/proc").glob("[0-9]*/environ") if b"of this trial" in content(p)]

    assert marked == []


def content(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended, or belongs to another user
        return b""


LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
#define API __attribute__((visibility("default")))
{others}
API int remote_session_control(int request, void *data, int nbytes)
{{
    (void) request, (void) data, (void) nbytes;
    {body}
}}
"""


def library_of(tmp_path, body):
    """Compile a FastRPC library whose remote_session_control() has the C code *body*."""
    names = {*abi.SYMBOLS, *abi.OPTIONAL} - {"remote_session_control"}
    others = "\n".join(f"API int {name}(void) {{ return -1; }}" for name in sorted(names))
    source = tmp_path / "library.c"
    source.write_text(LIBRARY.format(others=others, body=body))
    return str(build_library(host(), tmp_path / "libcdsprpc.so", sources=[source]))


def test_the_sdks_stub_is_told_from_a_library(tmp_path):
    """Each function of the stub returns -1, as in geerlingguy/sbc-reviews#85."""
    results, first = judged(tried(library=library_of(tmp_path, "return -1;")))

    assert first.check.name == "library"
    assert "stub" in results["library"].what


def test_a_library_that_dies_is_no_harm(tmp_path):
    seen = tried(library=library_of(tmp_path, "abort();"))
    results, first = judged(seen)

    assert seen["ended"] == "the process died of SIGABRT: library"
    assert first.check.name == "library"
    assert "SIGABRT" in results["library"].what


def test_a_library_that_prints_what_it_likes_is_heard_all_the_same(tmp_path):
    body = 'printf("{\\"step\\": \\"skel\\"}\\nnot json\\n"); fflush(stdout); return 0;'

    seen = tried(library=library_of(tmp_path, body))

    assert seen["steps"]["library"]["unsigned"] == 0


def test_a_library_that_is_not_there_is_named(tmp_path):
    results, first = judged(tried(library=str(tmp_path / "libcdsprpc.so")))

    assert first.check.name == "library"
    assert str(tmp_path) in results["library"].what


@pytest.mark.parametrize(
    "probe",
    [
        {"steps": 5}, {"steps": {"library": 5}},
        {"steps": {"library": {"loaded": 7, "missing": {}}}},
        {"steps": {"capabilities": {"arch": "v68"}, "library": {"path": None}}},
        {"steps": {"skel": {"available": "x", "findings": [5, {"level": "error"}]}}},
        {"steps": {"session": {"info": [], "seconds": "long"}, "echo": {}, "copy": {"error": 5}}},
        {"ended": ["x"]},
    ],
)  # fmt: skip
def test_a_trial_that_a_stranger_made_up_is_judged_without_harm(probe):
    results, _ = judged(probe)

    assert set(results) == set(checks.LIVE)
