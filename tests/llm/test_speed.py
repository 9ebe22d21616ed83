"""Tests of the estimates of a step, against the counts of the simulated NPUs.

The simulators do not use the code of the estimates.
"""

import numpy as np
import pytest

import npurt
from npurt.hexagon.device import estimator as hexagon
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF
from npurt.llm.measure.estimate import estimates, expected
from npurt.llm.measure.speed import rates, speeds, work
from npurt.llm.session.context import Context, Piece, run_together
from npurt.rknpu.device import estimator as rknpu
from npurt.rknpu.device.estimate import jobs
from npurt.rknpu.driver.system import SimulatedKernel
from npurt.rknpu.plan import cost
from tests.llm import tiny

PATH = tiny.path("llama3", "q8_0")


@pytest.fixture(scope="module")
def estimated():
    """Return the configuration of a tiny model, and its weights on each NPU."""
    with GGUF(PATH) as file:
        described = describe(file)
        config, model = described.config, described.graph(16)
    rounded = list(estimates(PATH, rknpu.RknpuRounding()))
    return config, {"rknpu": rounded, "hexagon": list(expected(model, None))}


@pytest.fixture(scope="module")
def step(estimated):
    """Return the work of a token on an NPU, with the logits of every token."""
    config, rows = estimated
    return {name: work(config, rows[name], every=True) for name in rows}


def steps(device, texts):
    """Run two steps with a token of each of *texts* contexts; yield the model after each step.

    The first step also prepares the products for this number of rows.
    """
    with npurt.Llama(
        PATH, device, n_ctx=16, n_batch=16, max_sequences=texts + 1, verify="off", progress=False
    ) as llm:
        contexts = [Context(llm.model) for _ in range(texts)]
        out = np.empty((texts, llm.config.n_vocab), np.float32)
        for token in (100, 200):
            assert run_together([Piece(each, [token], 1) for each in contexts], out)
            yield llm


@pytest.mark.parametrize("texts", [1, 5, 16])
def test_a_step_of_several_texts_moves_what_is_planned(step, texts):
    """Bytes, tasks and submits agree; the output matrix has a row for each context."""
    planned = [(times, cost.count(each), i)
            for i, (plans, _, times) in enumerate(jobs(step["rknpu"].weights, texts))
            for each in plans]  # fmt: skip
    simulator = SimulatedKernel()
    for _ in steps("rknpu:sim-vendor", texts):
        report = simulator.report()
        simulator.set("counters=0")

    cores = report["cores"]
    moved = sum(sum(core["bytes"].values()) for core in cores)
    assert moved == sum(times * count.moved for times, count, _ in planned)
    assert sum(core["tasks"] for core in cores) == sum(t * count.tasks for t, count, _ in planned)
    assert report["submits"]["rknpu"] == sum({i: times for times, _, i in planned}.values())


@pytest.mark.parametrize("texts", [1, 5, 16])
def test_a_step_of_several_texts_executes_the_packets_that_are_planned(step, texts):
    """The bound is as in tests/hexagon/test_packets.py: a tenth, and 100 packets a row and call."""
    counted = [
        sum(row.packets for row in llm.report().rows if row.macs)
        for llm in steps("hexagon:sim", texts)
    ]

    weights = step["hexagon"].weights
    planned = hexagon.packets(weights, texts, 68, 4)
    calls = sum(times for _, times in hexagon.jobs(weights, texts))
    bound = planned / 10 + calls * texts * 100
    assert abs(counted[1] - counted[0] - planned) <= bound


@pytest.mark.parametrize(
    ("name", "estimator"),
    [("rknpu", rknpu.RknpuEstimator()), ("hexagon", hexagon.HexagonEstimator())],
)
def test_one_text_together_is_decoding_and_more_texts_share_the_weights(
    estimated, step, name, estimator
):
    config, rows = estimated
    for each in speeds(config, rows[name], estimator):
        of = [rates(each.board, step[name], n) for n in (1, 2, 16)]
        assert of[0] == each.decode
        for one, two, many in zip(*of, strict=True):
            assert one < two < 2 * one
            assert two < many < 16 * one
