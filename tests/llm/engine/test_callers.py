"""Tests of mistakes of an engine's callers: each affects only the request of that caller."""

import threading

import numpy as np
import pytest

import npurt
from npurt.errors import SettingError
from npurt.llm.engine.admission import Admission
from npurt.llm.engine.scheduler import Scheduler
from tests.limits import HANG_SECONDS
from tests.llm import tiny

PATH = tiny.path("llama3", "q8_0")
IDS = tiny.ids("llama3")
OPTIONS = {"n_ctx": 128, "n_batch": 32, "n_threads": 2, "progress": False, "max_sequences": 4}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def open_engine(**options):
    return npurt.Engine(PATH, "cpu", **(OPTIONS | options))


@pytest.fixture(scope="module")
def engine():
    with open_engine() as made:
        yield made


def outcome(request):
    """Return the finish reason of a request, or its error; fail if the request never ends."""
    found = []

    def wait():
        try:
            found.append(request.result().finish)
        except BaseException as error:  # noqa: BLE001  SystemExit is among them
            found.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert found, "a request that never ends"
    return found[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": "high"}, {"priority": None}, {"priority": 1.5},
        {"salt": ["a"]}, {"salt": None}, {"salt": 1},
        {"deadline": "1"}, {"deadline": float("nan")}, {"deadline": True},
        {"reusable": "x"}, {"reusable": -1},
        {"prompt_tokens": 0}, {"prompt_tokens": -1}, {"prompt_tokens": 5}, {"prompt_tokens": "4"},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_by_submit(engine, wrong):
    good = engine.submit(IDS[:5], max_tokens=8, **GREEDY)
    (name,) = wrong

    with pytest.raises(SettingError, match=f"{name} is"):
        engine.submit(IDS[:4], max_tokens=1, **wrong)

    assert outcome(good) == "length"


@pytest.mark.parametrize("kind", ["logits_processor", "stopping_criteria"])
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError])
def test_whatever_a_function_of_a_request_raises_ends_that_request_alone(engine, kind, error):
    def raises(ids, logits):
        raise error("of the caller")

    bad = engine.submit(IDS[:9], max_tokens=8, **{kind: raises}, **GREEDY)
    good = engine.submit(IDS[:5], max_tokens=8, **GREEDY)

    assert isinstance(outcome(bad), error)
    assert outcome(good) == "length"
    assert engine.stats().running == 0


def test_a_request_of_another_engine_is_not_cancelled():
    """`cancel` ignores a request of another engine, although both number requests from 1."""
    gate = threading.Event()

    def waits(ids, logits):
        gate.wait(HANG_SECONDS)
        return logits

    with open_engine() as one, open_engine() as other:
        own = one.submit(IDS[:3], max_tokens=3, logits_processor=waits, **GREEDY)
        theirs = other.submit(IDS[:3], max_tokens=1, **GREEDY)
        assert own.id == theirs.id
        one.cancel(theirs)
        gate.set()
        assert outcome(own) == "length"


# --- Requests that are dropped --------------------------------------------------------------------


def steps_that_wait(gate):
    """Return options of a long generation that waits for *gate* before each token."""

    def waits(ids, logits):
        gate.wait(HANG_SECONDS)
        return logits

    return {"max_tokens": 100, "logits_processor": waits} | GREEDY


def read_one_event(engine, options):
    for _ in engine.submit(IDS[:5], **options):
        return


@pytest.mark.parametrize("drop", ["unread", "while it is read"])
def test_a_request_that_is_dropped_is_cancelled(drop):
    gate = threading.Event()
    with open_engine() as engine:
        if drop == "unread":
            engine.submit(IDS[:5], **steps_that_wait(gate))
            gate.set()
        else:
            gate.set()
            read_one_event(engine, steps_that_wait(gate))
        good = engine.submit(IDS[:5], max_tokens=110, **GREEDY)
        assert outcome(good) == "length"
        counts = engine.stats().counts

    assert counts.finished == 2
    assert counts.generated < 110 + 100


def test_a_listener_gets_all_of_a_request_that_is_dropped():
    told, ended = [], threading.Event()

    def listen(events):
        told.extend(events)
        if any(event.finish for event in events):
            ended.set()

    with open_engine(on_step=listen) as engine:
        engine.submit(IDS[:5], max_tokens=9, **GREEDY)
        assert ended.wait(HANG_SECONDS)

    assert sum(len(event.tokens) for event in told) == 9


# --- An engine that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["submit", "step", "cancel"])
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_mistake_of_the_engine_leaves_no_request_waiting(monkeypatch, method, error):
    """All running requests and all simultaneous submissions get an error."""
    told = []
    engine = open_engine(on_step=told.extend)
    held, inside = threading.Event(), threading.Event()

    def waits(ids, logits):
        inside.set()
        held.wait(HANG_SECONDS)
        return logits

    def fails(*args, **kwargs):
        raise error("a mistake")

    requests = [engine.submit(IDS[:5], max_tokens=50, logits_processor=waits, **GREEDY)]
    assert inside.wait(HANG_SECONDS)
    monkeypatch.setattr(Scheduler, method, fails)
    requests[0].cancel()
    requests += [engine.submit(IDS[:4], max_tokens=3, **GREEDY) for _ in range(2)]
    held.set()

    cancelled, *others = [outcome(request) for request in requests]
    assert all(isinstance(end, error) for end in others)
    assert cancelled == "cancelled" or isinstance(cancelled, error)
    assert {event.id for event in told if event.finish} == {request.id for request in requests}
    with pytest.raises(SettingError, match="closed"):
        engine.submit([1])
    engine.close()


def test_texts_that_ended_in_the_step_that_failed_are_told(monkeypatch):
    engine = open_engine()
    monkeypatch.setattr(Admission, "admit", lambda *arguments: 1 / 0)

    late = engine.submit(IDS[:4], deadline=0.0)

    assert isinstance(outcome(late), ZeroDivisionError)
    engine.close()


def test_requests_from_many_threads():
    """Each thread gets the texts of its requests, although other requests are cancelled."""
    wanted = {}
    with npurt.Llama(PATH, n_ctx=128, n_batch=32, n_threads=2, progress=False) as llm:
        for i in range(10):
            llm.reset()
            wanted[i] = llm.generate(IDS[i : i + 5], max_tokens=8, **GREEDY)
    wrong, rng = [], np.random.default_rng(0)
    with open_engine() as engine:

        def work(order):
            for i in order:
                request = engine.submit(IDS[i : i + 5], max_tokens=8, **GREEDY)
                if i % 3 == 0:
                    request.cancel()
                if request.result().finish != "cancelled" and request.text() != wanted[i]:
                    wrong.append(i)

        orders = [rng.permutation(10).tolist() for _ in range(6)]
        threads = [threading.Thread(target=work, args=[order]) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_SECONDS)
        stats = engine.stats()

    assert not wrong
    assert (stats.running, stats.waiting, stats.counts.finished) == (0, 0, 60)
