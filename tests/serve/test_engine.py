"""Engine processes may end and restart; the front keeps their sequences."""

import asyncio
import contextlib
import os
import random
import signal
import sys

import numpy as np
import pytest

import npurt
from npurt.errors import NpurtError
from npurt.serve.engine import client
from npurt.serve.engine.client import MAX_DEATHS, MAX_OPENINGS, EngineClient, opening_seconds
from npurt.serve.engine.protocol import Open, Submit
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.serve.client import served
from tests.serve.fake_engine import drawn

FAKE = [sys.executable, "-m", "tests.serve.fake_engine"]
REAL = [sys.executable, "-m", "npurt.serve.engine"]
PROMPTS = [[1, 2, 3, 60 + i] for i in range(8)]


def submit(tokens, seed=0, **options):
    sampling = {"seed": seed, **options.pop("sampling", {})}
    return Submit(0, tokens, len(tokens), sampling, **{"max_tokens": 40} | options)


class Text:
    """The events that a sink received: tokens, and how the sequence ended."""

    def __init__(self):
        self.tokens, self.events = [], []
        self.ended = asyncio.Event()

    def __call__(self, event):
        self.tokens += event.tokens
        self.events.append(event)
        if event.finish:
            self.ended.set()

    @property
    def finish(self):
        return self.events[-1].finish if self.events else None


@contextlib.asynccontextmanager
async def running(
    command=FAKE, path="model.gguf", stuck=120.0, opens=None, identity=None, **options
):
    opening = Open(0, str(path), options)
    engine = EngineClient(command, opening, stuck=stuck, opens=opens, identity=identity)
    async with asyncio.timeout(HANG_SECONDS):
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()


async def texts_of(engine, submits, meanwhile=None):
    """Return the `Text` of each of *submits*, all submitted at once."""
    texts = [Text() for _ in submits]
    for asked, text in zip(submits, texts, strict=True):
        engine.submit(asked, text)
    other = asyncio.create_task(meanwhile) if meanwhile else None
    for text in texts:
        await text.ended.wait()
    if other:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
    return texts


def alone(asked):
    """Return the tokens that a backend in this process generates for *asked*."""
    tokens = []
    while len(tokens) < asked.max_tokens:
        tokens.append(drawn(asked, tokens))
    return tokens


def test_tokens_of_several_sequences_arrive():
    async def run():
        async with running(sequences=3) as engine:
            asked = [submit(prompt, seed) for seed, prompt in enumerate(PROMPTS)]
            texts = await texts_of(engine, asked)
            assert [text.tokens for text in texts] == [alone(each) for each in asked]
            assert {text.finish for text in texts} == {"length"}
            assert engine.ready.sequences == 3
            assert (await engine.stats())["verified"] == 7
            assert engine.restarts == 0

    asyncio.run(run())


def test_who_waits_no_more_for_counts_is_forgotten():
    async def run():
        async with running() as engine:
            os.kill(engine.pid, signal.SIGSTOP)
            assert await engine.stats(0.01) == {}
            assert not engine._asked
            waiting = asyncio.create_task(engine.stats(HANG_SECONDS))
            await asyncio.sleep(0)
            os.kill(engine.pid, signal.SIGKILL)
            assert await waiting == {}
            assert not engine._asked

    asyncio.run(run())


async def kill_at_random(engine, seed, maximum=20):
    chance = random.Random(seed)
    for _ in range(maximum):
        while engine._steps < 4:  # another test covers an engine that dies before any work
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0.0, 0.1))
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(engine.pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_the_same_when_engines_are_killed(seed):
    async def run():
        async with running(step_seconds=0.004) as engine:
            asked = [submit(prompt, i, max_tokens=60) for i, prompt in enumerate(PROMPTS)]
            texts = await texts_of(engine, asked, kill_at_random(engine, seed, 7))
            assert engine.restarts > 0
            assert [text.tokens for text in texts] == [alone(each) for each in asked]

    asyncio.run(run())


def test_a_real_model_goes_on_with_the_same_text():
    path = tiny.path("qwen35", "q8_0")
    prompt = tiny.ids("qwen35", 20)
    asked = [
        submit(
            prompt[: 20 - i], i, max_tokens=100, ignore_eos=True,
            sampling={"temperature": 1.5, "repeat_penalty": 1.2},
        )
        for i in range(4)
    ]  # fmt: skip
    with npurt.Llama(path, n_ctx=128, seed=0) as llm:
        expected = []
        for each in asked:
            llm.generate(each.tokens, max_tokens=100, ignore_eos=True, logprobs=0, **each.sampling)
            expected.append([found.token for found in llm.timing.logprobs])

    async def run():
        async with running(REAL, path, n_ctx=128) as engine:
            texts = [Text() for _ in asked]
            for each, text in zip(asked, texts, strict=True):
                engine.submit(each, text)
            for text in texts:  # each engine is killed once, during a completion
                while len(text.tokens) < 2 and not text.finish:
                    await asyncio.sleep(0.001)
                os.kill(engine.pid, signal.SIGKILL)
                await text.ended.wait()
            assert engine.restarts  # some sequences may have ended before the kill
            return [text.tokens for text in texts]

    assert asyncio.run(run()) == expected


def test_a_grammar_in_lark_reaches_the_model():
    prompt = tiny.ids("qwen35", 20)

    async def run():
        async with running(REAL, tiny.path("qwen35", "q8_0"), n_ctx=128) as engine:
            (text,) = await texts_of(engine, [submit(prompt, lark='start: "ab" /c{3}/')])
            return text.tokens

    tokenizer = served("qwen35").tokenizer
    assert tokenizer.decode(asyncio.run(run()), special=False) == "abccc"


def test_a_stuck_engine_is_replaced():
    async def run():
        async with running(stuck=0.4, stick_at=30) as engine:
            (text,) = await texts_of(engine, [submit(PROMPTS[0], max_tokens=50)])
            assert text.tokens == alone(submit(PROMPTS[0], max_tokens=50))
            assert engine.restarts == 1

    asyncio.run(run())


def test_log_probabilities_of_a_prompt_come_once_when_engines_are_killed():
    prompt = list(range(1, 60))

    async def run():
        async with running(chunk=4, step_seconds=0.02) as engine:
            text = Text()
            engine.submit(submit(prompt, max_tokens=5, prompt_logprobs=True), text)
            for kills in (1, 2):
                while sum(len(event.prompt_logprobs) for event in text.events) < 10 * kills:
                    await asyncio.sleep(0.001)
                os.kill(engine.pid, signal.SIGKILL)
                while engine.restarts < kills or not engine.alive:
                    await asyncio.sleep(0.001)
            await text.ended.wait()
            return [found[0] for event in text.events for found in event.prompt_logprobs]

    assert asyncio.run(run()) == [-i / 8 for i in prompt[1:]]


def test_a_real_model_says_how_likely_the_prompt_is():
    path, prompt = tiny.path("qwen35", "q8_0"), tiny.ids("qwen35", 20)

    async def run():
        async with running(REAL, path, n_ctx=128) as engine:
            asked = submit(prompt, max_tokens=0, prompt_logprobs=True, top_logprobs=1)
            (text,) = await texts_of(engine, [asked])
            assert text.tokens == []
            return [found[0] for event in text.events for found in event.prompt_logprobs]

    with npurt.Llama(path, n_ctx=128, seed=0) as llm:
        logits = [llm.eval([i])[-1].astype("f8") for i in prompt[:-1]]
    wanted = [row[i] - np.log(np.exp(row).sum()) for row, i in zip(logits, prompt[1:], strict=True)]
    assert asyncio.run(run()) == pytest.approx(wanted, abs=1e-6)


def stuck_opens(folder, count):
    for i in range(count):
        (folder / str(i)).touch()


def test_an_engine_that_hangs_while_it_opens_is_replaced(tmp_path):
    async def run():
        stuck_opens(tmp_path, 2)
        async with running(opens=2.0, stuck_opens=str(tmp_path)) as engine:
            assert engine.restarts == 2
            (text,) = await texts_of(engine, [submit(PROMPTS[0])])
            assert text.tokens == alone(submit(PROMPTS[0]))

    asyncio.run(run())


def test_an_engine_that_never_opens_is_an_error_of_the_start(tmp_path):
    async def run():
        stuck_opens(tmp_path, 9)
        async with running(opens=0.2, stuck_opens=str(tmp_path)):
            pass

    with pytest.raises(NpurtError, match="not open after 0 s, 3 times"):
        asyncio.run(run())
    assert len(list(tmp_path.iterdir())) >= 6


def test_texts_end_when_the_model_cannot_be_opened_again_and_it_is_tried_further(tmp_path):
    async def run():
        async with running(opens=1.5, stuck_opens=str(tmp_path), step_seconds=0.01) as engine:
            text = Text()
            engine.submit(submit(PROMPTS[0], max_tokens=200), text)
            while not text.tokens:
                await asyncio.sleep(0.001)
            stuck_opens(tmp_path, MAX_OPENINGS)
            os.kill(engine.pid, signal.SIGKILL)
            await text.ended.wait()
            assert text.finish == "unavailable"
            assert "not open after" in text.events[-1].error[0]
            assert engine.failure is not None
            while engine.failure:
                await asyncio.sleep(0.01)
            (again,) = await texts_of(engine, [submit(PROMPTS[1])])
            assert again.tokens == alone(submit(PROMPTS[1]))

    asyncio.run(run())


def test_a_model_that_is_gone_ends_texts_without_the_name_of_its_folder(tmp_path):
    async def run():
        path = tmp_path / "model.gguf"
        path.symlink_to(tiny.path("qwen35", "q8_0"))
        async with running(REAL, path, n_ctx=128) as engine:
            text = Text()
            engine.submit(submit(tiny.ids("qwen35", 9), max_tokens=100), text)
            while not text.tokens:
                await asyncio.sleep(0.001)
            path.unlink()
            os.kill(engine.pid, signal.SIGKILL)
            await text.ended.wait()
            assert text.finish == "unavailable"
            assert "model.gguf" in text.events[-1].error[0]
            assert str(tmp_path) not in repr(text.events[-1].error)
            assert str(tmp_path) not in str(engine.failure)

    asyncio.run(run())


def test_a_large_file_has_more_time_to_open(tmp_path):
    (tmp_path / "a.gguf").touch()
    os.truncate(tmp_path / "a.gguf", 1 << 30)
    small = opening_seconds(str(tmp_path / "none.gguf"))
    assert opening_seconds(str(tmp_path / "a.gguf")) > small + 200


def test_an_idle_engine_is_not_taken_for_stuck():
    async def run():
        async with running(stuck=0.1) as engine:
            await asyncio.sleep(0.5)
            await texts_of(engine, [submit(PROMPTS[0])])
            assert engine.restarts == 0

    asyncio.run(run())


def test_a_sequence_that_kills_every_engine_ends():
    async def run():
        async with running(die_at=0) as engine:
            (text,) = await texts_of(engine, [submit(PROMPTS[0])])
            assert text.finish == "error"
            assert text.events[-1].error[0].startswith(f"the engine died {MAX_DEATHS} times at")

    asyncio.run(run())


@pytest.mark.parametrize("kind", [signal.SIGSEGV, signal.SIGKILL, 0])
@pytest.mark.parametrize("at", [0, 5])
def test_of_many_sequences_only_that_ends_which_kills_every_engine(kind, at, monkeypatch):
    monkeypatch.setattr(client, "MAX_KILLS", 4 if kind else 30)
    monkeypatch.setattr(client, "LINGER_SECONDS", 0.1)

    async def run():
        async with running(deadly=2, deadly_at=at, deadly_signal=int(kind)) as engine:
            asked = [submit(prompt, seed) for seed, prompt in enumerate(PROMPTS[:4])]
            texts = await texts_of(engine, asked)
            assert engine.restarts <= 5
            return texts, [alone(each) for each in asked]

    texts, expected = asyncio.run(run())
    assert [text.finish for text in texts] == ["length", "length", "error", "length"]
    expected[2] = expected[2][:at]
    assert [text.tokens for text in texts] == expected


def test_sequences_that_read_their_prompts_do_not_end_when_engines_are_killed():
    async def run():
        async with running(chunk=1, step_seconds=0.004) as engine:
            long = [[*range(40, 100), 40 + i] for i in range(6)]  # two requests wait for the others
            asked = [submit(prompt, seed) for seed, prompt in enumerate(long)]
            texts = [Text() for _ in asked]
            for each, text in zip(asked, texts, strict=True):
                engine.submit(each, text)
            for kills in range(1, MAX_DEATHS + 4):
                while not engine._steps:
                    await asyncio.sleep(0.001)
                os.kill(engine.pid, signal.SIGKILL)
                while engine.restarts < kills:
                    await asyncio.sleep(0.001)
            assert not any(text.tokens for text in texts)
            for text in texts:
                await text.ended.wait()
            return [text.tokens for text in texts], [alone(each) for each in asked]

    tokens, expected = asyncio.run(run())
    assert tokens == expected


def test_a_sequence_is_submitted_when_a_suspect_before_it_is_cancelled():
    async def run():
        async with running(chunk=1, step_seconds=0.004) as engine:
            first, second = Text(), Text()
            suspect = engine.submit(submit([*range(40, 240)]), first)
            while not engine._steps:
                await asyncio.sleep(0.001)
            os.kill(engine.pid, signal.SIGKILL)
            while not (engine.restarts and engine._steps):
                await asyncio.sleep(0.001)
            engine.submit(submit(PROMPTS[1]), second)
            while first.events[-1].read < 50:  # only the first sequence runs
                await asyncio.sleep(0.001)
            assert not second.events
            engine.cancel(suspect)
            await second.ended.wait()
            assert second.tokens == alone(submit(PROMPTS[1]))

    asyncio.run(run())


def test_a_cancelled_sequence_ends_at_the_next_step():
    async def run():
        async with running(sequences=1, step_seconds=0.001) as engine:
            endless, short = Text(), Text()
            first = engine.submit(submit(PROMPTS[0], max_tokens=None), endless)
            engine.submit(submit(PROMPTS[1], max_tokens=3), short)
            while not endless.tokens:
                await asyncio.sleep(0.001)
            engine.cancel(first)
            seen = len(endless.events)
            await short.ended.wait()
            assert len(endless.events) == seen
            assert short.tokens == alone(submit(PROMPTS[1], max_tokens=3))

    asyncio.run(run())


def test_a_refused_sequence_ends_alone():
    async def run():
        async with running() as engine:
            bad, good = await texts_of(engine, [submit(PROMPTS[0], 666), submit(PROMPTS[1])])
            assert tuple(bad.events[-1].error) == ("the fake refuses seed 666", "take another")
            assert good.tokens == alone(submit(PROMPTS[1]))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "said"), [("broken.gguf", "broken.gguf is broken"), ("mute.gguf", "process .* ended")]
)
def test_a_model_that_does_not_open_is_an_error_of_the_start(path, said):
    async def run():
        async with running(path=path):
            pass

    with pytest.raises(NpurtError, match=said):
        asyncio.run(run())


def test_the_process_ends_with_the_front():
    async def run():
        async with running() as engine:
            return engine.pid

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_signals_that_end_the_front_do_not_end_the_engine():
    async def run():
        async with running(step_seconds=0.002) as engine:
            text = Text()
            engine.submit(submit(PROMPTS[0]), text)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(engine.pid, number)
            await text.ended.wait()
            assert text.tokens == alone(submit(PROMPTS[0]))
            assert engine.restarts == 0

    asyncio.run(run())
