"""The engine that opens its model again for other scales of LoRA adapters, without a model."""

import threading

import pytest

from npurt.errors import SettingError
from npurt.serve.engine.adapters import Adapted
from npurt.serve.engine.protocol import SequenceEvent, Submit
from tests.limits import eventually


class Model:
    """A fake open model, whose sequences end when the test says so."""

    n_ctx, sequences, device, identity = 64, 2, "fake", {}

    def __init__(self, scales, emit):
        self.scales, self.emit = scales, emit
        self.submitted, self.cancelled, self.closed = [], [], False

    def submit(self, submit):
        assert not self.closed
        self.submitted.append(submit.id)

    def cancel(self, sequence):
        self.cancelled.append(sequence)
        self.emit([SequenceEvent(sequence, finish="cancelled")])

    def end(self, *sequences):
        self.emit([SequenceEvent(sequence, finish="end") for sequence in sequences])

    def stats(self):
        return {"waiting": 0.0, "steps": 5.0}

    def close(self):
        self.closed = True


class Engines:
    """An `Adapted`, and the models that it opened; scales of 13 cannot be opened."""

    def __init__(self):
        self.models, self.events = [], []
        self.may_open = threading.Event()
        self.may_open.set()
        self.broken = False
        self.engine = Adapted(self.open, (1.0,), self.events.extend)

    def open(self, scales, emit):
        self.may_open.wait()
        if scales == (13.0,) or self.broken:
            raise SettingError("too large", remedy="pass a smaller scale")
        self.models.append(Model(scales, emit))
        return self.models[-1]

    def ask(self, number, *scales):
        self.engine.submit(Submit(number, [1], 1, {}, scales=scales or None))

    def opened(self, count, submitted):
        """Wait until *count* models were opened and the last one has the sequences *submitted*."""
        return eventually(
            lambda: len(self.models) == count and self.models[-1].submitted == submitted
        )


@pytest.fixture
def engines():
    return Engines()


def test_sequences_with_the_same_scales_run_together(engines):
    for number in (1, 2):
        engines.ask(number)
    engines.ask(3, 1.0)
    assert engines.models[0].submitted == [1, 2, 3]
    assert len(engines.models) == 1


def test_sequences_with_other_scales_wait_in_order(engines):
    engines.ask(1)
    for number, scale in ((2, 0.5), (3, 0.5), (4, 1.0), (5, 0.5)):
        engines.ask(number, scale)
    assert engines.models[0].submitted == [1]
    assert engines.engine.stats() == {"waiting": 4.0, "steps": 5.0}

    engines.models[0].end(1)
    assert engines.opened(2, [2, 3])
    assert engines.models[0].closed
    engines.models[1].end(2)
    assert engines.models[1].submitted == [2, 3]  # 4 waits for 3 as well
    engines.models[1].end(3)
    assert engines.opened(3, [4])
    engines.models[2].end(4)
    assert engines.opened(4, [5])
    assert [model.scales for model in engines.models] == [(1.0,), (0.5,), (1.0,), (0.5,)]


def test_waiting_and_running_sequences_are_cancelled(engines):
    engines.ask(1)
    engines.ask(2, 0.5)
    engines.ask(3, 0.5)
    engines.engine.cancel(2)
    engines.engine.cancel(1)  # the next scales' turn begins
    assert engines.models[0].cancelled == [1]
    assert engines.opened(2, [3])
    engines.engine.cancel(9)  # unknown


def test_a_sequence_that_is_cancelled_while_the_model_is_opened_never_runs(engines):
    engines.may_open.clear()
    engines.ask(1, 0.5)
    assert engines.engine.stats() == {"waiting": 1.0}
    engines.engine.cancel(1)
    engines.may_open.set()
    engines.ask(2, 0.5)
    assert eventually(lambda: engines.models[-1].submitted == [2])


def test_scales_that_cannot_be_opened_end_their_sequences_alone(engines):
    engines.ask(1, 13.0)
    assert eventually(lambda: [event.id for event in engines.events] == [1])
    assert (engines.events[0].finish, engines.events[0].error[0]) == ("refused", "too large")
    engines.ask(2)
    assert engines.opened(2, [2])
    assert engines.models[-1].scales == (1.0,)


def test_a_model_that_cannot_be_opened_again_is_reported(engines):
    engines.broken = True
    engines.ask(1, 0.5)

    def lost():
        try:
            engines.engine.stats()
        except SettingError:
            return True
        return False

    assert eventually(lost)  # the process ends, and the front starts another one
    engines.engine.close()


def test_closing_ends_the_model(engines):
    engines.ask(1)
    engines.ask(2, 0.5)
    engines.engine.close()
    engines.models[0].end(1)
    assert engines.models[0].closed
    assert len(engines.models) == 1
