"""Tests of devices that fail in a step with eight sequences: no sequence loses a token."""

import functools
import itertools

import numpy as np
import pytest

import npurt
from npurt.device import verify
from npurt.errors import VerificationFailed
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.rknpu.device import device as device_module
from npurt.rknpu.driver.system import SimulatedKernel
from npurt.runtime.execute import recurrence
from tests.hexagon.simulator import kill, tell
from tests.llm import tiny
from tests.rknpu.conftest import STRICT
from tests.runtime.test_execute import Partial

TEXTS, COUNT, STRUCK = 8, 9, 5  # sequences, tokens of each, the step after which the fault comes
OPTIONS = {"n_ctx": 64, "n_batch": 64, "n_threads": 2, "progress": False}
DENSE, HYBRID, EXPERTS = ("llama3-256", "q4_k_m"), ("qwen35", "q8_0"), ("qwen3moe", "q8_0")
HEXAGON = ("crash=5", "invoke=5", "ssr=5:300", "kill")
RKNPU = ("einval", "efault", "ebusy", "enomem", "timeout", "stale", "eio", "enodev", "wedge")
# Faults that last: the device cannot be opened again, or fails again and again.
NO_DSP = (
    *("crash=1+", "invoke=1+", "ssr=1+:50", "delay=1+:2000"),
    *(f"crash=5 {name}=1+" for name in ("start", "open", "wrong_arch", "no_symbol", "map")),
    *(f"crash=5 {name}=1+" for name in ("no_memory", "bad_memory")),
)
NO_NPU = (
    *("dead@submit", "stale@submit:1+", "timeout@submit:1+"),
    *(
        f"{code}@{call}:1+"
        for code in ("eacces", "enospc", "etimedout")
        for call in ("submit", "prep")
    ),
    *(f"{code}@submit:1+" for code in ("einval", "efault", "ebusy", "enomem", "eio", "enodev")),
    *(f"{code}@submit:1+" for code in ("eintr", "enoent", "emfile")),
)


def prompts(model):
    ids = tiny.ids(model[0])
    return [ids[i : i + 3 + i] for i in range(TEXTS)]


def generate(model, device, strike=lambda: None, texts=range(TEXTS), **options):
    """Return the tokens of the sequences *texts* and the report; call *strike* after step `STRUCK`.

    *strike* causes the fault.
    """
    path = tiny.path(*model)
    with npurt.Llama(path, device, max_sequences=TEXTS + 2, **(OPTIONS | options)) as llm:
        scheduler = Scheduler(llm.model, sequences=TEXTS, prefixes=0)
        asked = GenerationRequest.of(
            {"max_tokens": COUNT, "ignore_eos": True, "temperature": 0}, None
        )
        for number in texts:
            scheduler.submit(Sequence(number, prompts(model)[number], asked, llm.tokenizer))
        events = []
        while scheduler.sequences:
            events += scheduler.step()
            if scheduler.counts.steps == STRUCK:
                strike()
        assert scheduler.counts.steps == COUNT  # the first evaluates all prompts
        report = llm.report()
    assert sum(event.finish == "length" for event in events) == len(texts)
    return [
        [token for event in events if event.id == number for token in event.tokens]
        for number in texts
    ], report


@functools.cache
def undisturbed(model, device):
    return generate(model, device)[0]


@pytest.fixture
def hexagon():
    tell("reset")
    yield
    tell("reset")


@pytest.fixture
def rknpu(monkeypatch):
    monkeypatch.setattr(device_module, "RESTART_SECONDS", 0.2)
    simulator = SimulatedKernel()
    simulator.set(f"reload=1 {STRICT}")
    yield simulator
    simulator.set(f"reload=1 {STRICT}")


@pytest.mark.usefixtures("hexagon")
@pytest.mark.parametrize("fault", HEXAGON)
@pytest.mark.parametrize("model", [DENSE, HYBRID], ids="-".join)
def test_a_dsp_that_dies_costs_no_text_a_token(model, fault):
    wanted = undisturbed(model, "hexagon:sim")

    tokens, report = generate(
        model, "hexagon:sim", kill if fault == "kill" else lambda: tell(fault)
    )

    assert tokens == wanted
    assert any("opened again" in note for note in report.notes)


@pytest.mark.usefixtures("hexagon")
@pytest.mark.parametrize(
    ("model", "fault"),
    [*((DENSE, fault) for fault in NO_DSP), (HYBRID, "crash=1+"), (EXPERTS, "crash=1+")],
)
def test_a_dsp_that_never_comes_back_costs_no_sequence_a_token(model, fault, monkeypatch):
    """After the loss, the CPU computes in the DSP's arithmetic."""
    monkeypatch.setenv("NPURT_DEADLINE", "1")
    monkeypatch.setattr("npurt.hexagon.device.sessions.RESTART_SECONDS", 0.2)
    wanted = undisturbed(model, "hexagon:sim")

    tokens, report = generate(model, "hexagon:sim", lambda: tell(fault))

    assert tokens == wanted
    assert any("the CPU takes over" in note for note in report.notes)


@pytest.mark.usefixtures("hexagon")
@pytest.mark.parametrize("nth", ["5", "1+"])
def test_a_wrong_byte_of_a_dsp_costs_no_sequence_a_token(nth):
    """Each wrong product is verified, and computed again on the CPU in the DSP's arithmetic."""
    wanted = undisturbed(DENSE, "hexagon:sim")

    tokens, report = generate(
        DENSE, "hexagon:sim", lambda: tell(f"wrong_byte={nth}"), verify="always"
    )

    assert tokens == wanted
    assert any("quarantined: hexagon:sim" in note for note in report.notes)


@pytest.mark.usefixtures("hexagon")
def test_a_wrong_delta_net_costs_no_sequence_a_token(monkeypatch):
    """The CPU continues with the state before the wrong delta net, in the DSP's arithmetic."""
    wanted = undisturbed(HYBRID, "hexagon:sim")
    calls = itertools.count()
    is_right = recurrence.is_right
    monkeypatch.setattr(recurrence, "is_right", lambda *args: next(calls) != 40 and is_right(*args))

    tokens, report = generate(HYBRID, "hexagon:sim", verify="always")

    assert tokens == wanted
    assert any("wrong delta net" in note for note in report.notes)


@pytest.mark.parametrize("fault", RKNPU)
def test_an_npu_that_fails_costs_no_text_a_token(fault, rknpu):
    wanted = undisturbed(DENSE, "rknpu:sim")

    tokens, report = generate(DENSE, "rknpu:sim", lambda: rknpu.set(f"fault={fault}@submit:3"))

    assert tokens == wanted
    assert any(" again" in note for note in report.notes)


@pytest.mark.parametrize(
    ("model", "fault"),
    [*((DENSE, fault) for fault in NO_NPU), (HYBRID, "dead@submit"), (EXPERTS, "dead@submit")],
)
def test_an_npu_that_is_lost_for_good_costs_no_sequence_a_token(model, fault, rknpu):
    """After the loss, the CPU computes in the NPU's arithmetic."""
    wanted = undisturbed(model, "rknpu:sim")

    tokens, report = generate(model, "rknpu:sim", lambda: rknpu.set(f"fault={fault}"))

    assert tokens == wanted
    assert any("CPU takes over" in note for note in report.notes)


def test_a_wrong_product_costs_no_text_a_token(rknpu, monkeypatch):
    """From then on, the CPU multiplies by that weight, in the NPU's arithmetic."""
    signs = np.array([1.0, -1.5, 1.25])  # with other vectors, errors may cancel
    monkeypatch.setattr(verify, "probe_vector", lambda n: np.resize(signs, n))
    wanted = undisturbed(DENSE, "rknpu:sim")

    tokens, report = generate(
        DENSE, "rknpu:sim", lambda: rknpu.set("fault=flip@submit:4"), verify="always"
    )

    assert tokens == wanted
    assert ", 1 wrong" in report.line()


def test_an_error_of_a_step_ends_its_texts_and_no_others(monkeypatch):
    """A result that is wrong twice ends all sequences of the step; later ones are unaffected."""
    path = tiny.path(*DENSE)
    with npurt.Llama(path, max_sequences=4, **OPTIONS) as llm:
        scheduler = Scheduler(llm.model, sequences=2, prefixes=0)
        for number in range(3):
            asked = GenerationRequest.of(
                {"max_tokens": 2, "temperature": 0, "ignore_eos": True}, None
            )
            scheduler.submit(Sequence(number, [1, 2, number], asked, llm.tokenizer))
        run = llm.model.executor.run

        def wrong(*args, **kwargs):
            raise VerificationFailed("wrong twice", remedy="none")

        monkeypatch.setattr(llm.model.executor, "run", wrong)
        ended = scheduler.step()
        monkeypatch.setattr(llm.model.executor, "run", run)
        rest = []
        while scheduler.sequences:
            rest += scheduler.step()
        capacity = llm.model.executor.capacity()

    assert [(event.id, event.finish) for event in ended] == [(0, "error"), (1, "error")]
    assert isinstance(ended[0].error, VerificationFailed)
    assert {event.id for event in rest} == {2}
    assert rest[-1].finish == "length"
    assert capacity is None or capacity.free == capacity.total


@pytest.mark.parametrize("model", [DENSE, HYBRID], ids="-".join)
@pytest.mark.parametrize("failing", [1, 2, 7])
def test_states_that_are_lost_with_a_device_are_evaluated_again(model, failing):
    """They were in the device's memory; at the third loss, the CPU evaluates all sequences."""
    path, device = tiny.path(*model), Partial(failing=range(failing, failing + 3))
    options = {"max_tokens": COUNT, "ignore_eos": True, "temperature": 0}
    with npurt.Engine(path, device, **OPTIONS) as engine:
        requests = [engine.submit(p, **options) for p in prompts(model)]
        results = [request.result() for request in requests]
        assert engine.stats().counts.lost == 3
    with npurt.Engine(path, "cpu", **OPTIONS) as engine:
        for prompt, result in zip(prompts(model), results, strict=True):
            before = range(COUNT - 1)  # tokens from the device; drafts make it several in a run
            assert len(result.tokens) == COUNT
            assert any(
                engine.submit([*prompt, *result.tokens[:n]], prompt_tokens=len(prompt), **options)
                .result()
                .tokens
                == result.tokens[n:]
                for n in before
            )
