"""Tests of schedules: each sequence gets the tokens that it would get alone."""

import functools

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
from npurt.llm.decode.generate import Generation
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.decode.sampler import TokenSampler
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from tests.llm import tiny
from tests.llm.engine.stepping import LOOKUP, page_bytes

# Devices and their numbers of pages; 0 means enough for all.  A sequence has at most three pages.
DEVICES = (("cpu", 0), ("cpu", 5), ("hexagon:sim", 5), ("rknpu:sim", 5))
MODELS = (("llama3", "q8_0"), ("qwen3moe", "q8_0"), ("qwen35", "q8_0"))
OPTIONS = {"n_ctx": 192, "n_batch": 32, "n_threads": 2, "progress": False, "verify": "off"}
TEXTS = 8
SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 0, "seed": 7},
    {"temperature": 0.0, "repeat_penalty": 1.3, "logprobs": 2},
)


class Alone:
    """Results of a model that generates one sequence at a time."""

    def __init__(self, path, device):
        self.llm = npurt.Llama(path, device, **OPTIONS)
        self.generated = functools.cache(self._generated)

    def _generated(self, prompt, count, sampling):
        """Return the tokens, their log probabilities and the finish reason."""
        llm = self.llm
        llm.reset()
        request = GenerationRequest.of(SAMPLINGS[sampling] | {"max_tokens": count}, None)
        sampler = request.sampler(llm.tokenizer, len(prompt), TokenSampler)
        generation = Generation(
            llm.generator, list(prompt), sampler, (), count, top_logprobs=request.top_logprobs
        )
        tokens = tuple(generation.tokens())
        return tokens, tuple(llm.timing.logprobs), llm.timing.finish


def pool(model):
    """Return prompts with common prefixes that are shorter or longer than a page."""
    ids = tiny.ids(model)
    cuts = [(0, 1), (0, 3), (0, 70), (0, 100), (0, 150), (5, 40), (5, 9)]
    prompts = [ids[a:b] for a, b in cuts]
    return [*prompts, ids[:70] + [3, 4, 5] * 4, [*ids[:90], 9], ids[:64], ids[:128]]


@pytest.fixture(scope="module", params=[(d, m) for d in DEVICES for m in MODELS], ids=str)
def pair(request):
    """Yield a model for many sequences, one for a single sequence, and prompts."""
    (device, pages), model = request.param
    path = tiny.path(*model)
    alone = Alone(path, device)
    budget = {"kv_bytes": pages * page_bytes(alone.llm)} if pages else {}
    with npurt.Llama(path, device, max_sequences=TEXTS + 14, **budget, **OPTIONS) as llm:
        if pages:
            assert llm.model.executor.capacity().total == pages
        yield llm, alone, pool(model[0])
    alone.llm.close()


class Schedules(RuleBasedStateMachine):
    """State machine: sequences are added, cancelled and preempted in any order between steps."""

    llm: npurt.Llama
    alone: Alone
    prompts: list

    @initialize(texts=st.integers(2, TEXTS), kept=st.integers(0, 6))
    def begin(self, texts, kept):
        self.scheduler = Scheduler(self.llm.model, sequences=texts, prefixes=kept, drafts=LOOKUP)
        self.asked, self.events, self.number = {}, {}, 0

    @rule(
        prompt=st.integers(0, 10), count=st.integers(0, 14), sampling=st.integers(0, 2),
        priority=st.integers(0, 1), salt=st.sampled_from("ab"), reusable=st.sampled_from([0, 66]),
    )  # fmt: skip
    def add(self, prompt, count, sampling, priority, salt, reusable):
        self.number += 1
        tokens = self.prompts[prompt]
        asked = GenerationRequest.of(SAMPLINGS[sampling] | {"max_tokens": count}, None)
        text = Sequence(
            self.number, list(tokens), asked, self.llm.tokenizer, priority=priority, salt=salt,
            reusable=reusable,
        )  # fmt: skip
        self.scheduler.require_fit(text)
        self.asked[self.number] = tuple(tokens), count, sampling
        self.events[self.number] = []
        self.take([self.scheduler.submit(text)])

    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            self.take(self.scheduler.step())

    @precondition(lambda self: self.scheduler.sequences)
    @rule(data=st.data())
    def cancel(self, data):
        text = data.draw(st.sampled_from(self.scheduler.sequences))
        self.take([self.scheduler.cancel(text)])
        assert text not in self.scheduler.sequences

    @precondition(lambda self: self.scheduler.admission.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.scheduler.admission.preempt(
            data.draw(st.sampled_from(self.scheduler.admission.running))
        )

    @rule()
    def forget_a_prefix(self):
        self.scheduler.prefixes.evict()

    def take(self, events):
        for event in filter(None, events):
            events = self.events[event.id]
            assert not (events and events[-1].finish), "an event after the end"
            events.append(event)

    @invariant()
    def tokens_are_those_of_the_text_alone(self):
        for number, events in getattr(self, "events", {}).items():
            if not events or not (ended := events[-1].finish):
                continue
            tokens = tuple(token for event in events for token in event.tokens)
            wanted, logprobs, finish = self.alone.generated(*self.asked[number])
            if ended == "cancelled":
                assert tokens == wanted[: len(tokens)]
            else:
                assert (tokens, ended) == (wanted, finish)
                assert tuple(x for event in events for x in event.logprobs) == logprobs
            events[:-1] = []  # these events are correct
            self.asked.pop(number)
        self.events = {n: e for n, e in getattr(self, "events", {}).items() if n in self.asked}

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):
            if not self.scheduler.sequences:
                break
            self.take(self.scheduler.step())
        self.tokens_are_those_of_the_text_alone()
        assert not self.asked
        self.scheduler.close()
        capacity = self.llm.model.executor.capacity()
        assert capacity is None or capacity.free == capacity.total


def test_any_schedule_gives_each_text_its_own_tokens(pair):
    llm, alone, prompts = pair
    kind = type("Here", (Schedules,), {"llm": llm, "alone": alone, "prompts": prompts})
    # Simulators are slow: a step of a hybrid model takes 50 ms or more on a Hexagon.
    examples, steps = (20, 20) if llm.device.caps.name == "cpu" else (2, 8)
    run_state_machine_as_test(
        kind, settings=settings(max_examples=examples, stateful_step_count=steps)
    )
