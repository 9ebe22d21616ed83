"""Test that the examples run on the simulators."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.llm import tiny
from tests.serve.client import TEMPLATE
from tests.serve.live import serving

FOLDER = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("graph", "y f32[T, D=64] = Add(x, downed)"),
        ("fastrpc_session", "echo of 42: 42"),
        ("own_skel/run", "sums that are right: 1000 of 1000"),
        ("rocket_buffer", "the product is exact"),
        ("register_program", "the product is exact"),
    ],
)
def test_an_example_below_matmul_runs(name, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name])

    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    assert said in capsys.readouterr().out


def test_texts_at_once(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["batch", str(tiny.path()), "-n", "3"])

    runpy.run_path(str(FOLDER / "batch.py"), run_name="__main__")

    assert "6 texts" in capsys.readouterr().out


def test_a_client_of_the_server(capsys, monkeypatch, tmp_path):
    with serving(tmp_path, engine="npurt.serve.engine", template=TEMPLATE, n_ctx=512) as server:
        monkeypatch.setattr(sys, "argv", ["client", "--url", f"{server.url}/v1"])
        runpy.run_path(str(FOLDER / "client.py"), run_name="__main__")

    said = capsys.readouterr().out
    assert re.search(r"^get_time\('(Bern|Lima|Tokyo)'\) = '", said, re.M)
    assert re.search(r"^Animal\(kind='\w+', legs=[0246]\)$", said, re.M)
