"""Test the count of calls to a device: FastRPC calls, jobs of the RK3588, runs of segments."""

import json
import re

import pytest

import npurt
from tests.llm import tiny
from tests.runtime.test_execute import Partial


def calls(llm, tokens):
    """Generate *tokens* tokens after a prompt; return the calls, and the report."""
    llm.generate([1, 2, 3], max_tokens=tokens, temperature=0, ignore_eos=True)
    report = llm.report()
    return sum(row.device_calls for row in report.rows), report


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim", "rknpu:sim-vendor"])
def test_products_of_one_input_are_one_call(device):
    """A layer takes four calls (q k v, output, gate up, down), and the output matrix takes one.

    So Qwen2.5-0.5B, with 24 layers, takes 97 calls a token.
    """
    with npurt.Llama(tiny.path("llama3", "q8_0"), device, n_ctx=64, progress=False) as llm:
        count, report = calls(llm, 5)
        per_run = 4 * llm.config.n_layers + 1

    assert report.runs == 5  # the prompt gives the first token
    if device == "hexagon:sim":
        assert count == 5 * per_run
        assert f"device calls in a run of the model: {per_run}.0 on {device}" in str(report)
    else:  # a job has one weight
        assert count >= 5 * per_run
    assert json.loads(report.to_json())["runs"] == 5


def test_a_delta_net_is_a_call_for_each_sequence():
    with npurt.Llama(tiny.path("qwen35", "q8_0"), "hexagon:sim", n_ctx=64, progress=False) as llm:
        count, report = calls(llm, 3)
        nets = sum(row.device_calls for row in report.rows if row.op == "delta net")

    assert nets >= 3
    assert nets % 3 == 0
    assert count > nets


def test_a_run_of_a_segment_is_a_call():
    with npurt.Llama(tiny.path(), Partial(), n_ctx=64, progress=False) as llm:
        count, report = calls(llm, 4)

    assert count == report.runs == 4
    assert "device calls in a run of the model: 1.0 on partial" in str(report)


def test_the_host_makes_no_device_calls():
    with npurt.Llama(tiny.path(), "cpu", n_ctx=64, progress=False) as llm:
        count, report = calls(llm, 4)

    assert count == 0
    assert not re.search("device calls", str(report))
