"""Several models in one server: chosen by the request, loaded on first use, and unloaded."""

import asyncio
import os
import shutil
import signal

import pytest

from npurt.serve.front.front import ServerSettings
from npurt.serve.router.policy import Policy, need
from tests.serve.client import SAY_HI, asking
from tests.serve.several import FILES, fill, several
from tests.serve.test_faults import INTERFACES

SLOW = {"step_seconds": 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("models"))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def loads(caplog, name):
    return sum(record.getMessage() == f"loading {name}" for record in caplog.records)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- Which model ----------------------------------------------------------------------------------


@asking
async def test_the_request_names_the_model(folder):
    async with several(folder) as ask:
        assert ask.status() == {"a": "unloaded", "b": "unloaded"}
        assert await ask.text("a") == await ask.text("a.gguf")
        assert ask.status() == {"a": "loaded", "b": "unloaded"}
        await ask.text("b.gguf")
        assert ask.status() == {"a": "loaded", "b": "loaded"}
        assert ask.engine("a").pid != ask.engine("b").pid


# For each interface, its path and the body without the model's name.
BODIES = [(path, body("hi", 4, 1)) for path, body, _ in INTERFACES]
BODIES += [("/v1/messages/count_tokens", SAY_HI), ("/tokenize", {"content": "hi"}),
           ("/api/show", {}), ("/api/generate", {"prompt": "hi"}),
           ("/v1/embeddings", {"input": "hi"})]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
@asking
async def test_an_unknown_model_is_404_in_each_interface(folder, path, body, stream):
    async with several(folder) as ask:
        for name in ("c", "../a", "/etc/passwd", str(folder / "a.gguf"), "a.gguf.gguf", "A"):
            reply = await ask(path, body | {"model": name, "stream": stream})
            assert reply.status == 404
            error = reply.json["error"]
            message = error if isinstance(error, str) else error["message"]
            assert "the models are a, b" in message
            if path.startswith("/v1/messages"):
                assert error["type"] == "not_found_error"
            elif not path.startswith("/api/"):
                assert error["code"] == ("model_not_found" if "param" in error else 404)
                # the other paths are llama.cpp's
                assert ("param" in error) == path.startswith("/v1/")
        assert (await ask(path, body | {"stream": stream})).status == 400  # the body names no model
        assert (await ask(path, body | {"model": 7})).status == 400
        assert ask.status() == {"a": "unloaded", "b": "unloaded"}


@asking
async def test_any_name_means_the_only_model(tmp_path):
    async with several(fill(tmp_path, {"a": FILES["a"]})) as ask:
        reply = await ask("/v1/completions", {"model": "gpt-4o", "prompt": "x", "max_tokens": 1})
        assert (reply.status, reply.json["model"]) == (200, "a")


@asking
async def test_what_needs_no_weights_loads_none(folder):
    async with several(folder) as ask:
        ids = (await ask("/tokenize", {"model": "b", "content": "once upon"})).json["tokens"]
        again = await ask("/detokenize", {"model": "b", "tokens": ids})
        assert "once upon" in again.json["content"]
        shown = (await ask("/api/show", {"model": "b"})).json
        assert shown["model_info"]["general.architecture"] == "qwen3"
        assert (await ask("/props?model=b")).json["model_path"] == "b.gguf"
        assert (await ask("/page/state?model=b")).json["ready"] is False
        assert ask.status() == {"a": "unloaded", "b": "unloaded"}


@asking
async def test_lists_say_what_is_loaded(folder):
    async with several(folder, policy=Policy(idle=60)) as ask:
        await ask.text("a")

        listed = (await ask("/v1/models")).json["data"]
        assert [(each["id"], each["status"]["value"]) for each in listed] == [
            ("a", "loaded"), ("b", "unloaded"),
        ]  # fmt: skip
        assert [each["meta"]["size"] for each in listed] == [
            FILES[name].stat().st_size for name in "ab"
        ]
        assert (await ask("/v1/models/b.gguf")).json == listed[1]
        assert (await ask("/v1/models/c")).json["error"]["code"] == "model_not_found"

        tags = (await ask("/api/tags")).json["models"]
        assert [each["name"] for each in tags] == ["a", "b"]
        (running,) = (await ask("/api/ps")).json["models"]
        assert (running["name"], running["context_length"]) == ("a", 256)
        assert not running["expires_at"].startswith("9999")

        assert (await ask("/props")).json["models"] == ["a", "b"]
        text = (await ask("/metrics")).body.decode()
        assert 'npurt:ready{model="a"} 1.0' in text
        assert 'npurt:ready{model="b"} 0.0' in text
        assert 'llamacpp:tokens_predicted_total{model="a"} 8.0' in text
        assert (await ask("/health")).status == 200


# --- Loading --------------------------------------------------------------------------------------


@asking
async def test_many_first_uses_load_once(folder, caplog):
    async with several(folder, sequences=8, open_seconds=0.2) as ask:
        texts = await asyncio.gather(*(ask.text("a", f"prompt {i % 4}") for i in range(20)))
        assert loads(caplog, "a") == 1
        assert len(set(texts)) == 4
        assert ask.engine("a").restarts == 0


@asking
async def test_the_queue_of_a_model_that_loads_is_bounded(folder):
    async with several(folder, max_sequences=1, sequences=1, open_seconds=0.3) as ask:
        body = {"model": "a", "prompt": "x", "max_tokens": 1}
        replies = await asyncio.gather(*(ask("/v1/completions", body) for _ in range(8)))
        assert sorted(reply.status for reply in replies) == [200] * 5 + [429] * 3


@pytest.mark.parametrize(("path", "body", "text_of"), INTERFACES)
@asking
async def test_streams_get_signs_of_life_while_the_model_loads(folder, path, body, text_of):
    async with several(folder, settings=ServerSettings(ping=0.02), open_seconds=0.3) as ask:
        reply = await ask(path, body("hi", 4, 1) | {"model": "a", "stream": True})
        assert reply.status == 200
        before = b"".join(reply.parts).decode()
        cold = before.count("\n")
        assert ask.status()["a"] == "loaded"
        again = await ask(path, body("hi", 4, 1) | {"model": "a", "stream": True})
        assert cold > b"".join(again.parts).decode().count("\n") + 4


@asking
async def test_ollamas_request_without_a_prompt_waits_for_the_model(folder):
    async with several(folder, open_seconds=0.1) as ask:
        reply = await ask("/api/generate", {"model": "a"})
        assert reply.json["done_reason"] == "load"
        assert ask.status() == {"a": "loaded", "b": "unloaded"}


@asking
async def test_a_model_that_cannot_be_loaded_is_an_error_and_harms_no_other(tmp_path):
    fill(tmp_path, FILES | {"broken": FILES["a"]})
    async with several(tmp_path) as ask:
        for path, body, _ in INTERFACES:
            for stream in (False, True):
                reply = await ask(path, body("hi", 4, 1) | {"model": "broken", "stream": stream})
                assert b"broken cannot be loaded" in reply.body
                assert reply.status == 500  # also of a stream: it fails before its first byte
        assert (await ask("/api/generate", {"model": "broken"})).status == 500
        (tmp_path / "b.gguf").unlink()
        reply = await ask("/v1/completions", {"model": "b", "prompt": "x"})
        assert reply.status == 500
        assert str(tmp_path) not in reply.body.decode()
        shutil.copy(FILES["b"], tmp_path / "b.gguf")
        assert await ask.text("b")
        assert await ask.text("a")


# --- Unloading ------------------------------------------------------------------------------------


@asking
async def test_a_model_that_nobody_uses_is_unloaded_and_loaded_again(folder):
    async with several(folder, policy=Policy(idle=0.1)) as ask:
        text = await ask.text("a")
        pid = ask.engine("a").pid
        await until(lambda: ask.status()["a"] == "unloaded" and not is_there(pid))
        assert (await ask("/api/ps")).json["models"] == []
        assert await ask.text("a") == text


@asking
async def test_no_model_is_unloaded_under_a_stream(folder):
    async with several(folder, policy=Policy(idle=0.02), **SLOW) as ask:
        text = await ask.text("a", tokens=100)  # takes a second, 50 times the idle timeout
        pid = ask.engine("a").pid
        assert ask.engine("a").restarts == 0
        assert len(text) > 50
        await until(lambda: not is_there(pid))


@asking
async def test_room_is_made_by_what_was_used_least_recently(tmp_path):
    names = ("a", "b", "c")
    async with several(
        fill(tmp_path, dict.fromkeys(names, FILES["a"])), policy=Policy(maximum=2)
    ) as ask:
        await ask.text("a")
        await ask.text("b")
        await ask.text("a")
        await ask.text("c")
        assert ask.status() == {"a": "loaded", "b": "unloaded", "c": "loaded"}


@asking
async def test_a_model_waits_for_streams_of_the_one_in_its_place(folder, caplog):
    async with several(folder, policy=Policy(maximum=1), **SLOW) as ask:
        alone = {name: await ask.text(name, tokens=60) for name in "ab"}
        first = asyncio.create_task(ask.text("a", tokens=60))
        await until(lambda: ask.status()["a"] == "loaded")
        second = asyncio.create_task(ask.text("b", tokens=60))
        await until(lambda: ask.status()["b"] == "loading")
        await until(lambda: "a" not in ask.router._current)
        assert [each["name"] for each in (await ask("/api/ps")).json["models"]] == ["a"]
        third = asyncio.create_task(ask.text("a", tokens=60))  # submitted after the second request
        assert await first == alone["a"]
        assert await second == alone["b"]
        assert await third == alone["a"]
        assert [loads(caplog, name) for name in "ab"] == [3, 2]


@asking
async def test_two_models_take_turns(folder):
    async with several(folder, policy=Policy(maximum=1)) as ask:
        alone = {name: await ask.text(name) for name in "ab"}
        texts = await asyncio.gather(*(ask.text(name) for name in "abababab"))
        assert texts == [alone[name] for name in "abababab"]


@asking
async def test_memory_decides_how_many_are_loaded(folder):
    async with several(folder) as ask:
        sizes = [need(offer.model) for offer in ask.router.offers()]
    async with several(folder, policy=Policy(nbytes=sum(sizes))) as ask:
        await ask.text("a")
        await ask.text("b")
        assert ask.status() == {"a": "loaded", "b": "loaded"}
    async with several(folder, policy=Policy(nbytes=sum(sizes) - 1)) as ask:
        await ask.text("a")
        await ask.text("b")
        assert ask.status() == {"a": "unloaded", "b": "loaded"}


@asking
async def test_a_model_that_never_fits_is_refused_in_each_interface(folder):
    async with several(folder, policy=Policy(nbytes=1000)) as ask:
        for path, body, _ in INTERFACES:
            for stream in (False, True):
                reply = await ask(path, body("hi", 4, 1) | {"model": "a", "stream": stream})
                assert reply.status == 400
                assert b"--models-bytes allows 0.00 GB" in reply.body
        assert (await ask("/api/generate", {"model": "a"})).status == 400
        assert (await ask("/tokenize", {"model": "a", "content": "x"})).status == 200


@asking
async def test_without_memory_and_without_others_it_is_503(folder, monkeypatch):
    monkeypatch.setattr("npurt.serve.router.policy.free_memory", lambda: 1000)
    async with several(folder) as ask:
        reply = await ask("/v1/completions", {"model": "a", "prompt": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_memory")
        monkeypatch.undo()
        assert await ask.text("a")


@asking
async def test_what_nobody_waits_for_any_more_is_not_loaded(folder, caplog):
    async with several(folder, policy=Policy(maximum=1), **SLOW) as ask:
        first = asyncio.create_task(ask.text("a", tokens=60))
        await until(lambda: ask.status()["a"] == "loaded")
        gone = asyncio.Event()
        second = asyncio.create_task(
            ask("/v1/completions", {"model": "b", "prompt": "x"}, gone=gone)
        )
        await until(lambda: ask.status()["b"] == "loading")
        gone.set()
        await second
        await first
        await until(lambda: ask.status()["b"] == "unloaded")
        assert loads(caplog, "b") == 0


# --- Engines that die -----------------------------------------------------------------------------


@asking
async def test_an_engine_that_is_killed_leaves_the_others_alone(folder):
    async with several(folder, **SLOW) as ask:
        alone = {name: await ask.text(name, tokens=60) for name in "ab"}
        streams = {name: asyncio.create_task(ask.text(name, tokens=60)) for name in "ab"}
        pids = {name: ask.engine(name).pid for name in "ab"}
        await asyncio.sleep(0.1)
        os.kill(pids["a"], signal.SIGKILL)
        assert {name: await stream for name, stream in streams.items()} == alone
        assert [ask.engine(name).restarts for name in "ab"] == [1, 0]
        assert ask.engine("b").pid == pids["b"]


# --- The end --------------------------------------------------------------------------------------


@asking
async def test_the_end_waits_for_the_texts_of_all_models(folder):
    async with several(folder, policy=Policy(maximum=1), **SLOW) as ask:
        alone = {name: await ask.text(name, tokens=60) for name in "ab"}
        streams = {"b": asyncio.create_task(ask.text("b", tokens=60))}
        await until(lambda: ask.router.offers()[1].front and ask.router.offers()[1].front.active)
        # this request waits until model b is free
        streams["a"] = asyncio.create_task(ask.text("a", tokens=60))
        await until(lambda: ask.status()["a"] == "loading")
        await ask.router.drain()
        assert {name: await stream for name, stream in streams.items()} == alone
        reply = await ask("/v1/completions", {"model": "a", "prompt": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (503, "shutting_down")
        assert (await ask("/health")).status == 503


# --- Real engines ---------------------------------------------------------------------------------


@asking
async def test_tiny_models_write_together_what_they_write_alone(folder):
    options = {"engine": "npurt.serve.engine", "n_ctx": 128, "n_threads": 1}
    prompts = [("a", "once"), ("b", "upon"), ("a", "a time"), ("b", "once")] * 2
    async with several(folder, **options) as ask:
        alone = [await ask.text(*each, tokens=12) for each in prompts]
    async with several(folder, **options) as ask:
        together = await asyncio.gather(*(ask.text(*each, tokens=12) for each in prompts))
    assert together == alone
    assert len(set(alone)) > 2


@asking
async def test_a_folder_may_have_encoders(tmp_path):
    fill(tmp_path, {"a": FILES["a"], "bert": FILES["a"].parents[1] / "bert/bert-bf16.gguf"})
    async with several(tmp_path, engine="npurt.serve.engine", n_ctx=256, n_threads=1) as ask:
        reply = await ask("/v1/embeddings", {"model": "bert", "input": "once upon a time"})
        assert reply.status == 200, reply.body
        assert reply.json["data"][0]["embedding"]
        assert await ask.text("a", tokens=2)
        assert (await ask("/api/show", {"model": "bert"})).json["capabilities"][0] == "embedding"
