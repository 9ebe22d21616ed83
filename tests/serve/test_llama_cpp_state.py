"""llama.cpp's paths for the state of a server: slots, adapters, loading and counting tokens."""

import asyncio

import pytest

from npurt.serve.model.front import Settings
from npurt.serve.model.served_model import ServedModel
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking
from tests.serve.several import fill, several

PROMPT = {"prompt": "a secret", "n_predict": 9, "seed": 7, "stop": ["secret stop"]}


async def until(condition):
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0)


@asking
async def test_slots_show_the_progress_of_sequences_but_no_prompt():
    client = Client(sequences=2, n_ctx=128)
    idle = (await client("/slots")).json
    assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in idle] == [
        (0, 128, False), (1, 128, False)
    ]  # fmt: skip

    def stopping(submit, done):  # stops the engine while the second sequence has three tokens
        if len(done) == 3 and submit.sampling["seed"] == 8:
            client.engine.go.clear()
        return 70

    client.say(stopping)
    bodies = [PROMPT, PROMPT | {"seed": 8, "n_predict": -1}, PROMPT | {"seed": 9}]
    tasks = [asyncio.create_task(client("/completion", body)) for body in bodies]
    await until(lambda: not client.engine.go.is_set())
    reply = await client("/slots")
    full = await client("/slots?fail_on_no_slot=1")
    client.engine.go.set()
    await asyncio.gather(*tasks)
    first, second = reply.json

    assert b"secret" not in reply.body
    assert [slot["is_processing"] for slot in (first, second)] == [True, True]
    assert first["id_task"] < second["id_task"]
    assert (first["params"]["seed"], first["params"]["n_predict"]) == (7, 9)
    decoded = first["next_token"]["n_decoded"]
    assert decoded == 4
    assert first["next_token"] == {
        "has_next_token": True, "has_new_line": False, "n_remain": 9 - decoded,
        "n_decoded": decoded,
    }  # fmt: skip
    assert second["next_token"]["n_remain"] == -1
    assert first["n_prompt_tokens"] == first["n_prompt_tokens_processed"] > 1
    assert (full.status, full.json["error"]["code"]) == (503, 503)
    assert (await client("/slots?fail_on_no_slot=1")).status == 200
    assert not any(slot["is_processing"] for slot in (await client("/slots")).json)


@asking
async def test_adapters_are_listed_and_requests_may_name_their_scales():
    client = Client("x", settings=Settings(lora=[("a.gguf", 1.0), ("b.gguf", 0.5)]))
    body = {"prompt": "a"}
    both = [{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}]

    assert (await client("/lora-adapters")).json == [
        {"id": 0, "path": "a.gguf", "scale": 1.0}, {"id": 1, "path": "b.gguf", "scale": 0.5}
    ]  # fmt: skip
    assert (await Client("x")("/lora-adapters")).json == []
    assert (await client("/completion", body | {"lora": both})).status == 200
    for lora, words in (
        ([], "other scales"), (both[:1], "other scales"), ([*both, {"id": 2, "scale": 0}], "has 2"),
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 1}], "other scales"), ([{"id": 0}], "scale"),
        ([{"id": -1, "scale": 1}], "id"), ("a.gguf", "list"),
    ):  # fmt: skip
        for path, asked in (("/completion", body), ("/v1/chat/completions", SAY_HI)):
            reply = await client(path, asked | {"lora": lora})
            assert reply.status == 400
            assert words in reply.json["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/responses"])
@asking
async def test_input_tokens_are_those_that_a_request_uses(path):
    client = Client("x")
    tool = {"name": "f", "parameters": {"type": "object"}}
    if "chat" in path:
        body = SAY_HI | {"tools": [{"type": "function", "function": tool}]}
        used = (await client(path, body)).json["usage"]["prompt_tokens"]
    else:
        body = {"input": "hi", "instructions": "be", "tools": [{"type": "function", **tool}]}
        used = (await client(path, body)).json["usage"]["input_tokens"]
    before = len(client.backend.submitted)
    counted = await client(f"{path}/input_tokens", body)

    assert counted.json == {"object": "response.input_tokens", "input_tokens": used}
    assert len(client.backend.submitted) == before
    assert (await client(f"{path}/input_tokens", {"input": 5})).status == 400


@asking
async def test_the_only_model_is_always_loaded():
    client = Client("x")
    assert (await client("/models/load", {"model": "tiny"})).json == {"success": True}
    reply = await client("/models/unload", {"model": "tiny"})
    assert reply.status == reply.json["error"]["code"] == 400
    assert "--models-dir" in reply.json["error"]["message"]


@asking
async def test_models_of_a_folder_are_loaded_and_unloaded_by_request(tmp_path):
    async with several(fill(tmp_path)) as client:
        assert (await client("/models/load", {"model": "b.gguf"})).json == {"success": True}
        await until(lambda: client.status() == {"a": "unloaded", "b": "loaded"})
        assert (await client("/models/load", {"model": "b"})).json == {"success": True}
        text = await client.text("b")
        assert (await client("/models/unload", {"model": "b"})).json == {"success": True}
        await until(lambda: client.status() == {"a": "unloaded", "b": "unloaded"})
        again = await client("/models/unload", {"model": "b"})
        assert (again.status, "not loaded" in again.json["error"]["message"]) == (400, True)
        assert await client.text("b") == text
        for path in ("/models/load", "/models/unload"):
            assert (await client(path, {"model": "c"})).status == 404
            assert (await client(path, {})).status == 400
            assert (await client(path, {"model": 5})).status == 400


@asking
async def test_unloading_waits_for_active_requests(tmp_path):
    async with several(fill(tmp_path), step_seconds=0.01) as client:
        request = asyncio.create_task(client.text("a", tokens=40))
        await until(lambda: client.status()["a"] == "loaded")
        assert (await client("/models/unload", {"model": "a"})).json == {"success": True}
        assert await request
        await until(lambda: client.status()["a"] == "unloaded")


@asking
async def test_a_model_may_have_several_names():
    model = ServedModel(tiny.path("llama3", "q8_0"), "first, second,third,", TEMPLATE)
    client = Client("x", model=model)
    (listed,) = (await client("/v1/models")).json["data"]

    assert (listed["id"], listed["aliases"]) == ("first", ["second", "third"])
    for name in ("first", "second", "third"):
        assert (await client(f"/v1/models/{name}")).json["id"] == "first"
    assert (await client("/v1/models/fourth")).status == 404
    assert (await client("/v1/chat/completions", SAY_HI)).json["model"] == "first"
