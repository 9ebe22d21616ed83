"""Every damaged model file is refused with a remedy; none crashes the process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment, spawn
from tests.limits import HANG_SECONDS
from tests.llm import tiny

WORKER = Path(__file__).with_name("mutants.py")
COUNT = 150


@pytest.fixture(scope="module", params=[("llama3", "q8_0"), ("llama3-256", "q4_k_m")], ids="-".join)
def fates(request, tmp_path_factory):
    """Return a dict from the kind of damage to the outcomes; two processes run at a time."""
    folder = tmp_path_factory.mktemp("mutants")
    source = tiny.path(*request.param)
    found = {}
    for kinds in (("truncated", "bytes_changed"), ("grown", "swapped")):
        workers = {
            kind: subprocess.Popen(
                [sys.executable, WORKER, source, folder, kind, "0", str(COUNT)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for kind in kinds
        }
        for kind, worker in workers.items():
            out, err = worker.communicate(timeout=HANG_SECONDS)
            found[kind] = worker.returncode, err, [line.split(" ", 1) for line in out.splitlines()]
    return found


@pytest.mark.parametrize("kind", ["truncated", "bytes_changed", "grown", "swapped"])
def test_a_damaged_model_runs_or_is_refused_with_a_remedy(fates, kind):
    code, err, lines = fates[kind]

    assert (code, err) == (0, ""), f"died of file {len(lines)}: {err}"
    assert [int(number) for number, _ in lines] == list(range(COUNT))
    assert {fate for _, fate in lines} <= {"ran", "refused"}


def test_damage_is_mostly_seen(fates):
    """Over a third of the copies are refused, so the tests above do read damaged files."""
    for kind, (_, _, lines) in fates.items():
        refused = sum(fate == "refused" for _, fate in lines)
        assert refused > COUNT / 3, kind
    assert all(fate == "refused" for _, fate in fates["truncated"][2])


@pytest.mark.parametrize("verb", [("run", "-p", "x"), ("chat",), ("bench", "-r", 1)])
def test_the_command_line_says_what_is_wrong_with_a_file(tmp_path, verb):
    data = tiny.path("llama3", "q8_0").read_bytes()
    path = tmp_path / "half.gguf"
    for size in (0, 3, 100, 5000, len(data) - 1):
        path.write_bytes(data[:size])
        result = spawn(verb[0], "-m", path, *verb[1:])
        assert (result.code, result.out) == (1, ""), result
        assert re.fullmatch(r"npurt: .*\n  remedy: .*\n", result.err), result.err
