"""Helpers that step a scheduler, and that run a sequence alone for its expected tokens."""

import functools

import numpy as np
import pytest

import npurt
from npurt.llm.decode.options import GenerationRequest
from npurt.llm.engine.costs import RowCosts
from npurt.llm.engine.scheduler import Scheduler
from npurt.llm.engine.sequence import Sequence
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.opening import Drafts
from tests.llm import tiny

LOOKUP = Drafts(lambda context: Lookup(), 8)
DENSE, HYBRID = ("llama3", "q8_0"), ("qwen35", "q8_0")
OPTIONS = {"n_ctx": 512, "n_batch": 32, "n_threads": 2, "progress": False, "verify": "off"}
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Steps:
    """A scheduler with numbered sequences, and the events of each."""

    def __init__(self, llm, sequences=4, prefixes=0, drafts=None):
        self.llm, self.events = llm, {}
        self.scheduler = Scheduler(llm.model, sequences=sequences, prefixes=prefixes, drafts=drafts)

    def add(self, number, tokens, count=50, priority=0, **options):
        asked = GenerationRequest.of(GREEDY | {"max_tokens": count} | options, None)
        text = Sequence(number, list(tokens), asked, self.llm.tokenizer, priority=priority)
        self.scheduler.require_fit(text)
        self.events[number] = list(filter(None, [self.scheduler.submit(text)]))
        return text

    def step(self):
        """Run one step; return its events by sequence number."""
        events = self.scheduler.step()
        for event in events:
            self.events[event.id].append(event)
        return {event.id: event for event in events}

    def finish(self):
        """Run steps until all sequences end."""
        for _ in range(1000):
            if not self.scheduler.sequences:
                return
            self.step()
        raise AssertionError("texts that do not end")

    def tokens(self, number):
        return [token for event in self.events[number] for token in event.tokens]

    def end(self, number):
        return self.events[number][-1]


@functools.cache
def alone(tokens, count, model=DENSE):
    """Return the tokens that are generated for a sequence when it runs alone."""
    with npurt.Llama(tiny.path(*model), "cpu", max_sequences=3, **OPTIONS) as llm:
        steps = Steps(llm, sequences=1)
        steps.add(0, tokens, count)
        steps.finish()
        return steps.tokens(0)


@pytest.fixture
def opened():
    """Return a function that opens a model with a given number of pages."""
    llms = []

    def make(pages=None, model=DENSE, **options):
        path, budget = tiny.path(*model), {}
        if pages:
            with npurt.Llama(path, "cpu", **OPTIONS) as llm:
                budget = {"kv_bytes": pages * page_bytes(llm)}
        llm = npurt.Llama(path, "cpu", max_sequences=12, **(OPTIONS | options), **budget)
        llms.append(llm)
        return llm

    yield make
    for llm in llms:
        capacity = llm.model.executor.capacity()
        llm.reset()
        capacity = llm.model.executor.capacity()
        assert capacity.free == capacity.total
        llm.close()


def page_bytes(llm):
    """Return the bytes of a page: 64 positions of the keys and values of all layers, in float16."""
    config = llm.config
    layers = sum(not config.is_recurrent(i) for i in range(config.n_layers))
    return 2 * layers * config.n_kv_heads * config.head_width * 64 * 2


CYCLE = [17, 4, 29, 8, 15, 2, 31, 6, 23, 12]


def cycle(ids, logits):
    """Make sequences repeat ten tokens, so that drafts are right."""
    forced = np.full_like(logits, -np.inf)
    forced[CYCLE[len(ids) % len(CYCLE)]] = 0
    return forced


def with_times(scheduler, seconds):
    """Replace the measured time of each run of a scheduler by ``seconds(rows)``."""
    costs = RowCosts(scheduler._rows)
    add = costs.add
    costs.add = lambda rows, _: add(rows, seconds(rows))
    scheduler._costs = scheduler._step_cost.costs = costs
