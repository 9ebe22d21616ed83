"""Tests of an engine's guarantees: equal tokens in any batch, and progress of every sequence.

The expected tokens are those of `Llama.generate`.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from tests.llm import tiny
from tests.llm.engine.stepping import CYCLE, LOOKUP, Steps, cycle, page_bytes, with_times
from tests.llm.engine.test_drafts import eager  # noqa: F401  a fixture: drafts whatever rows cost

OPTIONS = {"n_ctx": 192, "n_batch": 32, "n_threads": 2, "progress": False}
GREEDY = {"temperature": 0.0, "ignore_eos": True}
DENSE = ("llama3", "q8_0")


# --- Two engines ----------------------------------------------------------------------------------


def alone(model, device, prompts, **asked):
    with npurt.Llama(tiny.path(*model), device, **OPTIONS) as llm:
        texts = []
        for prompt in prompts:
            llm.reset()
            texts.append(llm.generate(prompt, **asked))
        return texts


@pytest.mark.parametrize(
    "devices", [("cpu", "rknpu:sim"), ("hexagon:sim", "rknpu:sim"), ("cpu", "hexagon:sim")], ids=str
)
def test_two_engines_on_two_devices_give_the_texts_of_each_alone(devices):
    """Both engines run at the same time, and have separate states, faults and reports."""
    model = ("llama3-256", "q4_k_m")
    ids = tiny.ids(model[0])
    prompts = [ids[:3], ids[2:9], ids[1:6]]
    asked = GREEDY | {"max_tokens": 6}
    wanted = [alone(model, device, prompts, **asked) for device in devices]

    path, options = tiny.path(*model), OPTIONS | {"max_sequences": 3}
    with npurt.Engine(path, devices[0], **options) as one:
        with npurt.Engine(path, devices[1], **options) as other:
            requests = [
                [engine.submit(prompt, **asked) for engine in (one, other)] for prompt in prompts
            ]
            texts = [[pair[i].text() for pair in requests] for i in range(2)]
            reports = [str(engine.llm.report()) for engine in (one, other)]
        after = one.submit(prompts[0], **asked).text()

    assert texts == wanted
    assert after == wanted[0][0]  # after the other engine was closed
    for device, own, foreign in zip(devices, reports, reversed(devices), strict=True):
        assert device in own
        assert foreign == "cpu" or foreign not in own


# --- Grammars -------------------------------------------------------------------------------------

RULES = "[a-c]{3}(-[a-c]{2}){8,12}"  # repetitive, so that some drafts are right
WILD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 60}


@pytest.mark.parametrize("model", [DENSE, ("qwen35", "q8_0")], ids="-".join)
def test_a_grammar_gives_the_text_that_it_gives_alone(model, eager):  # noqa: F811
    """The text is the same with drafts, with preemption and with prefixes of other sequences."""
    path, ids = tiny.path(*model), tiny.ids(model[0])
    grammar = npurt.Grammar.from_regex(RULES)
    prompts = [ids[:100], ids[:70], [*ids[:70], 5], ids[:64], ids[:100], ids[:9]]
    sampled = [WILD | {"seed": seed % 3, "grammar": grammar} for seed in range(len(prompts))]
    wanted = []
    with npurt.Llama(path, **OPTIONS) as llm:
        budget = 6 * page_bytes(llm)
        for prompt, asked in zip(prompts, sampled, strict=True):
            llm.reset()
            wanted.append((llm.generate(prompt, **asked), llm.timing.finish))
    assert all(re.fullmatch(RULES, text) for text, finish in wanted if finish == "end")
    assert len({text for text, _ in wanted}) > 2

    def preempt(_):
        """Preempt a sequence after every seventh step, in the engine's thread."""
        scheduler = engines[0]._loop._scheduler
        if scheduler.admission.running and scheduler.counts.steps % 7 == 0:
            scheduler.admission.preempt(scheduler.admission.running[0])

    engines = []
    with npurt.Engine(
        path, "cpu", max_sequences=4, kv_bytes=budget, prefixes=3, snapshot_bytes=1 << 24,
        on_step=preempt, **OPTIONS,
    ) as engine:  # fmt: skip
        engines.append(engine)
        for _ in range(2):
            requests = [engine.submit(p, **a) for p, a in zip(prompts, sampled, strict=True)]
            found = [(request.text(), request.result().finish) for request in requests]
            assert found == wanted
        for _ in range(2):
            assert engine.submit(prompts[1], **sampled[1]).text() == wanted[1][0]
        counts = engine.stats().counts

    assert counts.hits
    assert counts.drafted
    assert counts.preempted > 5


# --- Progress in each step ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ample():
    with npurt.Llama(tiny.path(*DENSE), max_sequences=12, **OPTIONS, verify="off") as llm:
        yield llm


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 150)), min_size=1, max_size=9),
    cost=st.sampled_from([0.0, 0.03, 1.0]),
)
@settings(max_examples=15)
def test_no_text_waits_for_more_than_two_steps_while_others_decode(ample, arrivals, cost):
    """A step yields a token of every decoding sequence and evaluates a part of the oldest prompt.

    A sequence waits only while the maximum number of sequences runs.  A prompt waits only for
    older prompts.
    """
    ids = tiny.ids("llama3")
    steps = Steps(ample, sequences=5, drafts=LOOKUP)
    with_times(steps.scheduler, lambda rows: 1 + cost * rows)
    texts, waited = [], {}
    for number, (pause, length) in enumerate([*arrivals, (60, 1)]):
        for _ in range(pause):
            running = list(steps.scheduler.admission.running)
            decoding = [text for text in running if not text.prefilling]
            reading = [text for text in running if text.prefilling]
            before = {text.id: text.pending for text in reading}
            free = 5 - len(running)
            waiting = [text for text in texts if not text.finish and text not in running]
            events = steps.step()
            assert all(events[text.id].tokens or events[text.id].finish for text in decoding)
            for text in reading[:1]:
                assert text.pending < before[text.id] or events[text.id].tokens
            for text in waiting[:free]:
                waited[text.id] = waited.get(text.id, 0) + (text.context is None)
        prompt = (CYCLE * 16)[:length] if number % 2 else ids[:length]
        options = {"logits_processor": cycle} if number % 2 else {}
        texts.append(steps.add(number, prompt, 25, **options))
    assert not any(waited.values())
    steps.finish()
    steps.scheduler.close()
