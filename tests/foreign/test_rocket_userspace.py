"""Run the tests of rocket-userspace, which pass on silicon, on the simulator of the RK3588.

`rocket_userspace.tsv` has the outcome of each test, the number of jobs that the simulator refuses,
and the reason.  Any other outcome is a failure, even a better one; then the row must be changed.
"""

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.foreign import rocket_userspace

pytestmark = pytest.mark.foreign

LIMIT = 900  # seconds; the longest test takes 40 s on a free core
# The programs wait 8 s for a job, enough for silicon; a paused machine needs longer.
PATIENCE = {"ROCKET_WAIT_MS": "600000"}
LIST = Path(__file__).with_name("rocket_userspace.tsv")
EXPECTED = {
    row["test"]: row for row in csv.DictReader(LIST.read_text().splitlines(), delimiter="\t")
}


@pytest.fixture(scope="session")
def built(prepared):
    """Return the folder of the programs, and the tests."""
    with prepared("rocket-userspace"):
        return rocket_userspace.build()


def test_the_list_has_every_test(built):
    _, tests = built

    assert sorted(EXPECTED) == sorted(tests)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_does_as_on_silicon(name, built, preload, tmp_path):
    folder, tests = built
    test, expected = tests[name], EXPECTED[name]
    path = tmp_path / "report.json"
    env = {**os.environ, **PATIENCE, **test.env, **preload(path)}

    done = subprocess.run(
        [folder / test.command[0], *test.command[1:]],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT,
    )

    outcome = {0: "pass", **dict.fromkeys(test.skipped, "skip")}.get(done.returncode, "fail")
    lines = done.stdout.decode(errors="replace").splitlines()
    unusual = [line for line in lines if not line.endswith("PASS")][-20:]
    said = "\n".join((f"exit status {done.returncode}", *unusual, *lines[-20:]))
    report = json.loads(path.read_text())
    assert outcome == expected["outcome"], said
    assert expected["refused"] in {str(report["refused"]), "any"}, said
    assert all(expected["why"] in reason["why"] for reason in report["reasons"]), said
