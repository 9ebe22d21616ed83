"""Test the framework of checks: order, requirements, and the first finding."""

import pytest

from npurt.doctor.check import DoctorCheck, diagnose, fail, ok, skip, start_here, warn
from npurt.doctor.system import KINDS, Recorder, Replay, System, wrong


def check(name, result, needs=(), *, symptom=False):
    return DoctorCheck(name, f"why {name}", lambda system: result, needs, symptom)


def findings(*checks):
    return diagnose(checks, Recorder(Replay({})))


def first(*checks):
    found = start_here(findings(*checks))
    return found and found.check.name


BROKEN = fail("broken", "mend it")
SUSPECT = warn("odd", "change it", suspect=True)


def test_nothing_comes_first_where_nothing_failed():
    assert first(check("a", ok("")), check("b", warn("")), check("c", skip(""))) is None
    assert first(check("a", SUSPECT)) is None


def test_the_first_failure_comes_first():
    assert first(check("a", ok("")), check("b", BROKEN), check("c", BROKEN)) == "b"


def test_a_symptom_is_explained_by_a_suspect_before_it():
    assert first(check("a", SUSPECT), check("b", BROKEN, symptom=True)) == "a"
    assert first(check("a", warn("odd")), check("b", BROKEN, symptom=True)) == "b"
    assert first(check("b", BROKEN, symptom=True), check("a", SUSPECT)) == "b"


def test_a_cause_is_not_explained_away():
    assert first(check("a", SUSPECT), check("b", BROKEN)) == "b"


def test_what_needs_a_failure_is_not_looked_at():
    seen = findings(
        check("a", BROKEN),
        check("b", ok(""), ("a",)),
        check("c", ok(""), ("b",)),
        check("d", ok("")),
    )

    assert [f.result.state for f in seen] == ["fail", "skip", "skip", "ok"]
    assert [f.result.what for f in seen[1:3]] == ["needs a", "needs b"]
    assert [f.waits for f in seen] == [False, True, True, False]


def test_what_needs_something_that_was_skipped_for_its_own_reason_is_looked_at():
    seen = findings(check("a", skip("nothing to see")), check("b", ok(""), ("a",)))

    assert seen[1].result.state == "ok"


def test_each_finding_has_what_it_saw_and_questions_are_asked_once():
    asked = []

    class Counting(System):
        def ask(self, kind, *words):
            asked.append((kind, *words))
            return KINDS[kind][0]

    def look(system):
        system.text("/a")
        system.names("/b")
        return ok("")

    system = Recorder(Counting())
    one, two = diagnose([DoctorCheck("one", "", look), DoctorCheck("two", "", look)], system)

    assert one.evidence == two.evidence == {"text /a": None, "names /b": []}
    assert asked == [("text", "/a"), ("names", "/b")]


def test_a_replay_answers_like_a_machine_that_has_nothing():
    replay = Replay({})

    assert replay.machine() == replay.environment("X") == ""
    assert replay.text("/a") is replay.node("/a") is replay.matches("/a", "b") is None
    assert replay.read("a", "/b") is None
    assert replay.names("/a") == replay.log("b") == []
    assert replay.runs("a") is False
    assert replay.probe("a") == {}


@pytest.mark.parametrize(
    "evidence",
    [
        [],
        {"shell rm": ""},
        {"text /a": 5},
        {"text /a": ["b"]},
        {"names /a": [1]},
        {"names /a": None},
        {"runs a": "yes"},
        {"probe a": None},
        {"machine": None},
        {"node /a": {"mode": "x"}},
        {"node /a": {"mode": 1, "owner": "", "group": "", "read": True, "write": True}},
        {"node /a": {"mode": "", "owner": "", "group": "", "read": 1, "write": True}},
        {"node /a": {"mode": "", "owner": "", "group": "", "read": True, "write": True, "x": 1}},
    ],
)
def test_evidence_that_makes_no_sense_is_seen(evidence):
    assert wrong(evidence)


def test_evidence_that_makes_sense_is_let_through():
    node = {"mode": "crw", "owner": "root", "group": "video", "read": True, "write": False}

    assert wrong({"node /a b": node, "node /c": None, "text x": "y", "probe p": {"z": [1]}}) is None
