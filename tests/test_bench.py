"""Test the scripts of bench/ that compare with a peer or a target: their commands and output."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm import tiny

PROJECT = Path(__file__).parents[1]
MODEL = tiny.path("llama3", "q8_0")

# A replacement of llama-batched-bench: N sequences get 10 N tokens/s, without repacking 20 N.
PEER = """#!/usr/bin/env python3
import json, sys
asked = dict(zip(sys.argv[1:], sys.argv[2:]))
assert int(asked["-c"]) == 3 * (int(asked["-npp"]) + int(asked["-ntg"]))
assert asked["--output-format"] == "jsonl" and asked["-t"] == "1"
print("what a library says")
for count in map(int, asked["-npl"].split(",")):
    rate = 10 * count * (2 if "--no-repack" in sys.argv else 1)
    print(json.dumps({"pl": count, "speed_pp": 100, "speed_tg": rate}))
"""


def output_of(script, *arguments):
    command = [sys.executable, PROJECT / "bench" / script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def peer(tmp_path):
    """Return a folder with a benchmark of the peer."""
    program = tmp_path / "llama-batched-bench"
    program.write_text(PEER)
    program.chmod(0o755)
    return tmp_path


def test_several_texts_are_compared_with_the_peer_round_by_round(peer):
    flags = ("--peer", peer, "--models", MODEL, "--threads", 1, "--rounds", 3, "--prompt", 8,
             "--gen", 4, "--parallel", 3)  # fmt: skip

    rounds = json.loads(output_of("vs_llamacpp.py", *flags, "--json"))

    programs = ["npurt", "llama.cpp", "llama.cpp --no-repack"]
    assert [each["program"] for each in rounds] == 3 * programs
    own, repacked, plain = (each["figures"] for each in rounds[:3])
    assert own["spread of 3"] >= 1
    assert (
        own["decode of 3, times one"] == own["decode of 3, tokens/s"] / own["decode of 1, tokens/s"]
    )
    assert repacked == {
        "prompts of 1, tokens/s": 100, "decode of 1, tokens/s": 10, "prompts of 3, tokens/s": 100,
        "decode of 3, tokens/s": 30, "decode of 3, times one": 3,
    }  # fmt: skip
    assert plain["decode of 3, tokens/s"] == 60


def test_the_table_compares_with_the_better_variant_of_the_peer(peer):
    flags = ("--peer", peer, "--models", MODEL, "--threads", 1, "--rounds", 2, "--prompt", 8,
             "--gen", 4, "--parallel", 1, 3)  # fmt: skip

    lines = output_of("vs_llamacpp.py", *flags).splitlines()

    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:-2]]
    rows = {figure: rest for _, figure, *rest in cells}
    own, *peers, ratio = rows["decode of 3, tokens/s"]
    assert peers == ["30", "60"]
    middle, low, high = map(float, re.fullmatch(r"(.*) \[(.*)-(.*)\]", ratio).groups())
    assert low <= middle <= high
    assert middle == pytest.approx(float(own) / 60, rel=1e-3, abs=0.01)
    assert rows["spread of 3"][1:] == ["", "", ""]


def test_waits_of_an_engine_are_measured_with_a_prompt_of_its_own_length():
    flags = ("--prefix", 70, "--prompt", 300, "--rounds", 2)

    told = json.loads(output_of("engine_latency.py", MODEL, *flags, "--json"))

    known, beside = told["known prefix"], told["beside a prompt"]
    assert (known["prefix"], beside["prompt"], beside["texts"]) == (70, 300, 8)
    assert min(beside["gaps_before"], beside["gaps_beside"]) > 0
    assert beside["ratio"] == beside["p95_beside_s"] / beside["p95_before_s"]
    assert all(len(times) == 2 for times in known["samples"])


def test_the_server_is_measured_by_texts_of_equal_length():
    flags = ("--model", MODEL, "--tests", "rates", "--clients", 2, "--rounds", 1, "--tokens", 4)

    (row,) = json.loads(output_of("serve.py", *flags, "--context", 400, "--threads", 1, "--json"))

    assert row["server"] == "npurt"
    assert row["figures"]["tokens/s, 2 clients"] > 0
    assert row["figures"]["prompt tokens, 2 clients"] > 2 * 40  # the same number of words


def test_a_figure_of_the_server_is_compared_with_the_peer_that_has_the_better_one():
    table = runpy.run_path(str(PROJECT / "bench/serve.py"))["table"]
    rates = {"npurt": (6, 2.0), "llama.cpp": (2, 4.0), "llama.cpp --no-repack": (3, 5.0)}
    rows = [
        {"server": name, "test": "rates", "figures": {"tokens/s": rate, "first token, s": first}}
        for name, (rate, first) in rates.items()
    ]
    rows += [{"server": "npurt", "test": "memory", "figures": {"PSS, MB": 1.0}}]

    *_, rate, first, memory = table(rows).splitlines()

    assert rate == "| tokens/s | 6 | 2 | 3 | 2 |"
    assert first == "| first token, s | 2 | 4 | 5 | 0.5 |"
    assert memory == "| PSS, MB | 1 |  |  |  |"
