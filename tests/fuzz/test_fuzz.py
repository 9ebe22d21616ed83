"""Run the fuzz targets with the fixed inputs of CI, and check that they find known defects.

Each target tries its corpus and the same `RUNS` inputs every time; `python -m tests.fuzz` tries
other inputs, and `make soak` continues with them.
"""

import itertools

import pytest

from tests.fuzz import frame

PARTS = [(name, part) for name in frame.NAMES for part in range(frame.shares(name))]
PLANTED = [(name, defect) for name in frame.NAMES for defect in frame.planted(name)]


def found(name, asked, plant=""):
    """Return the failures of the inputs of *asked*, as text."""
    result = frame.campaign(name, asked, plant=plant, max_failures=1)
    assert result.runs
    return "\n".join(f"{failure.command}\n{failure.why}" for failure in result.failures)


@pytest.mark.parametrize("name", frame.NAMES)
def test_the_corpus_passes(name):
    assert frame.corpus(name), "a target has a corpus"

    assert not found(name, frame.known(name))


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_the_inputs_of_ci_pass(name, part):
    runs, parts = frame.runs(name), frame.shares(name)
    seeds = range(part * runs // parts, (part + 1) * runs // parts)

    assert not found(name, ({"seed": seed} for seed in seeds))


@pytest.mark.parametrize(("name", "defect"), PLANTED)
def test_a_known_defect_is_found(name, defect):
    seeds = frame.fresh(0, frame.runs(name))

    assert found(name, itertools.chain(frame.known(name), seeds), defect)
