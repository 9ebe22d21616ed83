"""Tests of several sequences in one run with an NPU: each row has the bits of a run alone."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.graph.rows import Rows
from npurt.runtime.execute.offload import Offload
from npurt.runtime.open.devices import open_device
from npurt.runtime.report.ledger import Ledger
from tests.cpu.sequences import Schedule, check_alone, compiled, limits
from tests.cpu.test_sequences import path

DEVICES = ["rknpu:sim", "hexagon:sim"]
MODELS = ["llama3", "qwen35", "lfm2"]
TOKENS = np.random.default_rng(1).integers(0, 200, 60)


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    with open_device(request.param) as opened:
        yield opened


@contextlib.contextmanager
def segment_of(device, name, sequences):
    """Yield a segment of a model on *device* and the CPU, and their ledger."""
    ledger = Ledger(device.caps.name)
    with (
        CpuDevice(2) as cpu,
        compiled(path(name), Offload(device, cpu, ledger), limits(sequences)) as segment,
    ):
        yield segment, ledger


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_any_schedule_gives_the_bits_of_each_sequence_alone(device, name, data):
    maximum = data.draw(st.integers(2, 4))
    with segment_of(device, name, maximum) as (segment, _):
        schedule = Schedule(data.draw, segment, maximum, 200)
        for _ in range(data.draw(st.integers(1, 5))):
            schedule.step()
        for sequence in schedule.texts:
            segment.forget(sequence)
        check_alone(schedule.seen, segment)


@pytest.mark.parametrize("name", MODELS)
def test_products_of_several_sequences_are_one_call_of_the_device(device, name):
    """Each product of a layer is one call with all rows of the run."""
    with segment_of(device, name, 3) as (segment, ledger):
        sequences, positions = np.repeat([0, 1, 2], [5, 1, 4]), np.r_[0:5, 0:1, 0:4]
        rows = Rows(sequences, positions, np.ones(10, bool))
        segment.run({"tokens": TOKENS[:10]}, rows)

        done = [row for row in ledger.report().rows if row.actual == device.caps.name and row.macs]
        assert done
        assert {(row.calls, row.rows) for row in done} == {(1, 10)}


def test_a_delta_net_has_a_state_for_each_sequence(device):
    """A fork copies the state exactly; a run of one sequence leaves the other's state unchanged."""
    with segment_of(device, "qwen35", 3) as (segment, ledger):

        def run(start, end, sequence, tokens=TOKENS):
            rows = Rows.of(end - start, start, sequence=sequence)
            return segment.run({"tokens": tokens[start:end]}, rows)["logits"]

        run(0, 30, 0)
        checkpoint = segment.checkpoint(0)
        segment.fork(0, 1, 30)
        other = run(30, 40, 1, TOKENS[::-1])
        then = run(30, 40, 0)
        segment.fork(0, 2, 30)
        segment.restore(2, checkpoint)
        assert np.array_equal(run(30, 40, 2), then)
        segment.restore(2, checkpoint)
        assert np.array_equal(run(30, 40, 2, TOKENS[::-1]), other)
        segment.forget(1)
        run(0, 30, 1)
        assert np.array_equal(run(30, 40, 1), then)
        there = {r.actual for r in ledger.report().rows if r.op == "delta net"}
        assert there == {device.caps.name if "hexagon" in device.caps.name else "cpu"}
