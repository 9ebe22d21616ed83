"""Files of a served model that are replaced: no text mixes two models."""

import asyncio
import contextlib
import json
import os
import shutil
import signal

import httpx
import pytest

import npurt
from npurt.errors import NpurtError
from npurt.serve.engine import identity as engine_identity
from npurt.serve.engine.client import ModelReplaced
from npurt.serve.engine.protocol import MODEL
from tests.limits import HANG_SECONDS
from tests.llm import tiny, variants
from tests.llm.test_adapters import pairs_of, write
from tests.serve.client import asking
from tests.serve.live import serving
from tests.serve.several import several
from tests.serve.test_engine import PROMPTS, REAL, Text, running, submit

LLAMA = tiny.path("llama3", "q8_0")


@pytest.fixture
def copied(tmp_path):
    """Return a copy of a tiny model that a test may replace."""
    return shutil.copy2(LLAMA, tmp_path / "model.gguf")


@pytest.fixture
def other(tmp_path):
    """Return a model with the header, size and time of `copied`, and other weights."""
    return variants.write_other_weights(LLAMA, tmp_path / "other")


async def killed(engine, text):
    """Kill the process of *engine* when *text* has a token; return when the engine gave up."""
    while not text.tokens:
        await asyncio.sleep(0.001)
    os.kill(engine.pid, signal.SIGKILL)
    await text.ended.wait()


async def ends_by(replace, path, **options):
    """Check that a sequence ends with an error if *replace* is called and its engine killed."""
    async with running(REAL, path, n_ctx=512, **options) as engine:
        text = Text()
        engine.submit(submit(PROMPTS[0], max_tokens=400, ignore_eos=True), text)
        while not text.tokens:
            await asyncio.sleep(0.001)
        replace()
        await killed(engine, text)
        assert text.finish == "unavailable"
        what, remedy = text.events[-1].error
        with pytest.raises(ModelReplaced, match="was replaced while the server used it"):
            await engine.watch()
        assert engine.failure is not None
        return what, remedy


@asking
async def test_a_restarted_engine_does_not_continue_with_another_model(copied, other):
    what, remedy = await ends_by(lambda: os.replace(other, copied), copied)
    assert what.startswith("the content of the model was replaced")
    assert "start the server again" in remedy


@asking
async def test_a_restarted_engine_does_not_continue_with_another_draft(copied, tmp_path):
    draft, other = shutil.copy2(LLAMA, tmp_path / "draft.gguf"), tmp_path / "other"
    shutil.copyfile(LLAMA, other)  # another time
    what, _ = await ends_by(lambda: os.replace(other, draft), copied, draft=str(draft))
    assert "the draft" in what


@asking
async def test_a_restarted_engine_does_not_continue_with_another_adapter(copied, tmp_path):
    adapter = write(tmp_path / "adapter.gguf", pairs_of(LLAMA, seed=1))
    other = write(tmp_path / "other", pairs_of(LLAMA, seed=2))
    what, _ = await ends_by(lambda: os.replace(other, adapter), copied, lora=[(str(adapter), 1.0)])
    assert "the adapter adapter.gguf" in what


@asking
async def test_a_restarted_engine_of_the_same_files_continues(copied):
    async with running(REAL, copied, n_ctx=512) as engine:
        text = Text()
        engine.submit(submit(PROMPTS[0], max_tokens=300, ignore_eos=True), text)
        await killed(engine, text)
        assert text.finish == "length"
        assert engine.restarts == 1


@asking
async def test_an_engine_of_another_version_of_npurt_is_refused(copied):
    async with running(REAL, copied, n_ctx=512) as engine:
        with pytest.raises(ModelReplaced, match="npurt was replaced"):
            engine._require_same(engine._identity | {"npurt": "0.0.1"})


@asking
async def test_the_first_engine_opens_the_file_that_the_front_has_read(copied):
    with pytest.raises(NpurtError, match="the model was replaced"):
        async with running(REAL, copied, identity={MODEL: "another"}, n_ctx=512):
            pass


def test_an_encoder_has_an_identity():
    with npurt.Llama(tiny.MODELS / "bert/bert-bf16.gguf", progress=False) as llm:
        assert engine_identity.identity(llm)[MODEL]


def test_a_server_whose_model_was_replaced_ends_its_streams_and_itself(copied, other):
    """With status 1, so that a supervisor starts it again, with the new file."""
    os.utime(other)
    with serving(copied.parent, engine="npurt.serve.engine", path=copied, n_ctx=512) as server:
        body = {"prompt": "a", "max_tokens": 400, "seed": 1, "stream": True, "ignore_eos": True}
        lines = []
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=body, timeout=HANG_SECONDS
        ) as reply:
            for line in reply.iter_lines():
                if not lines:
                    os.replace(other, copied)
                    server.kill_engine()
                lines += [line] if line else []
        error = json.loads(lines[-1].removeprefix("data: "))["error"]
        assert "was replaced while the server used it" in error["message"]
        assert server.process.wait(HANG_SECONDS) == 1
    assert "was replaced" in server.log.read_text()


@asking
async def test_a_model_of_a_folder_that_was_replaced_is_loaded_again(tmp_path, other):
    os.utime(other)
    path = shutil.copy2(LLAMA, tmp_path / "a.gguf")
    async with several(tmp_path, engine="npurt.serve.engine", n_ctx=512) as ask:
        first = await ask.text("a", tokens=20, ignore_eos=True)
        old = ask.router.offers()[0].model.fingerprint
        shutil.copyfile(tiny.path("qwen3", "q8_0"), tmp_path / "new")
        os.replace(tmp_path / "new", path)
        engine = ask.engine("a")
        assert await ask.text("a", tokens=20, ignore_eos=True) == first  # the opened file
        os.kill(engine.pid, signal.SIGKILL)
        with contextlib.suppress(ModelReplaced):
            await engine.watch()
        again = await ask.text("a", tokens=20, ignore_eos=True)
        assert ask.router.offers()[0].model.fingerprint != old
    shutil.copyfile(tiny.path("qwen3", "q8_0"), path)
    async with several(tmp_path, engine="npurt.serve.engine", n_ctx=512) as ask:
        assert await ask.text("a", tokens=20, ignore_eos=True) == again
