"""Tests of several contexts of one model: joint evaluation gives identical results."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import npurt
from npurt.errors import LayoutError, SettingError
from npurt.llm.session.context import Context, Piece, run_together
from tests.llm import tiny
from tests.runtime.test_execute import Partial

DEVICES = ("cpu", "hexagon:sim", "rknpu:sim")
MODELS = (("llama3", "q8_0"), ("qwen3moe", "q8_0"), ("qwen35", "q8_0"))
ROWS, POSITIONS, MAX_CONTEXTS = 48, 160, 8
TOKENS = st.integers(0, 599)


@pytest.fixture(scope="module", params=[(d, m) for d in DEVICES for m in MODELS], ids=str)
def llm(request):
    device, model = request.param
    with npurt.Llama(
        tiny.path(*model), device, n_ctx=POSITIONS, n_batch=ROWS, n_threads=2, progress=False,
        max_sequences=MAX_CONTEXTS + 1,
    ) as made:  # fmt: skip
        yield made


def evaluated(llm, pieces):
    """Return the requested logits of *pieces*, each as a separate array."""
    counts = [piece.wanted for piece in pieces]
    out = np.empty((sum(counts), llm.config.n_vocab), np.float32)
    assert run_together(pieces, out)
    return np.split(out, np.cumsum(counts)[:-1])


class Contexts(RuleBasedStateMachine):
    """State machine: contexts begin, end, fork, roll back and run together; `llm` checks them."""

    llm: npurt.Llama

    @initialize()
    def begin(self):
        self.open = []
        self.last = None  # a context, the number of its requested logits, and these

    @precondition(lambda self: len(self.open) < MAX_CONTEXTS - 1)
    @rule()
    def add(self):
        self.open.append(Context(self.llm.model))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def step(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.open), min_size=1, unique=True))
        pieces = []
        for context in chosen:
            maximum = min(ROWS - sum(len(p.ids) for p in pieces), POSITIONS - context.n_tokens)
            if maximum:
                ids = data.draw(st.lists(TOKENS, min_size=1, max_size=min(maximum, 20)))
                pieces.append(Piece(context, ids, data.draw(st.integers(0, len(ids)))))
        if any(piece.wanted for piece in pieces):
            made = evaluated(self.llm, pieces)
            at = max(range(len(pieces)), key=lambda i: bool(pieces[i].wanted))
            self.last = pieces[at].context, pieces[at].wanted, made[at]

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(0, 30))
    def take_back(self, data, count):
        context = data.draw(st.sampled_from(self.open))
        context.rollback(min(count, context.n_tokens))

    @precondition(lambda self: self.open and len(self.open) < MAX_CONTEXTS - 1)
    @rule(data=st.data())
    def fork(self, data):
        source = data.draw(st.sampled_from(self.open))
        hybrid = self.llm.model.executor.recurrent
        length = source.n_tokens if hybrid else data.draw(st.integers(0, source.n_tokens))
        made = Context(self.llm.model)
        made.fork(source, length)
        self.open.append(made)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def drop(self, data):
        self.open.remove(context := data.draw(st.sampled_from(self.open)))
        context.release()

    @invariant()
    def logits_are_those_of_the_text_alone(self):
        last, self.last = getattr(self, "last", None), None
        if last is not None:
            context, wanted, made = last
            self.llm.reset()
            np.testing.assert_array_equal(self.llm.eval(context.history)[-wanted:], made)

    def teardown(self):
        for context in getattr(self, "open", ()):
            context.release()


def test_contexts_of_a_model_do_not_know_of_each_other(llm):
    kind = type("Here", (Contexts,), {"llm": llm})
    run_state_machine_as_test(kind, settings=settings(max_examples=10, stateful_step_count=14))

    capacity = llm.model.executor.capacity()
    llm.reset()
    assert capacity is None or llm.model.executor.capacity().free == capacity.total


def test_there_is_room_for_as_many_contexts_as_were_asked_for():
    with npurt.Llama(tiny.path(), max_sequences=2, progress=False) as llm:
        second = Context(llm.model)
        with pytest.raises(SettingError, match="all 2 sequences of this model are in use"):
            Context(llm.model)
        second.eval([1, 2])
        second.release()
        third = Context(llm.model)
        assert third.n_tokens == 0
        np.testing.assert_array_equal(third.eval([3, 4]), llm.eval([3, 4]))


def test_forks_that_cannot_be_are_refused():
    with npurt.Llama(tiny.path("qwen35", "q8_0"), max_sequences=2, progress=False) as llm:
        llm.eval([1, 2, 3])
        other = Context(llm.model)
        for length in (-1, 2, 4):
            with pytest.raises(LayoutError, match=f"{length} of 3 tokens cannot be forked"):
                other.fork(llm.context, length)
        other.fork(llm.context, 3)
        assert other.history == (1, 2, 3)


@pytest.mark.parametrize("model", ["llama3", "qwen35"])
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_device_that_is_lost_loses_no_token_of_any_context(model, failing):
    """The states of all contexts are lost, three times; at last the CPU evaluates all tokens."""
    path, ids = tiny.path(model, "q8_0"), tiny.ids(model, 6)
    with npurt.Llama(path, "cpu", n_ctx=64) as llm:
        wanted = llm.eval(ids)[-1]
    options = {"n_ctx": 64, "progress": False, "max_sequences": 3}
    with npurt.Llama(path, Partial(failing=range(failing, failing + 3)), **options) as llm:
        contexts = [llm.context, Context(llm.model), Context(llm.model)]
        contexts[1].eval(ids[:2])
        out, found = np.empty((3, llm.config.n_vocab), np.float32), {}
        while min([context.settle() for context in contexts]) < len(ids):
            left = [c for c in contexts if c.n_tokens < len(ids)]
            pieces = [Piece(c, ids[c.n_tokens : c.n_tokens + 2], 1) for c in left]
            if run_together(pieces, out):
                found |= zip(left, out.copy(), strict=False)

        assert llm.model.executor.losses == 3
        assert {context.history for context in contexts} == {tuple(ids)}
        np.testing.assert_array_equal([found[context] for context in contexts], [wanted] * 3)
