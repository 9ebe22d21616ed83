"""llama.cpp's paths for the state of a server: slots, adapters, loading and counting tokens."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import npurt
from npurt.serve.front.front import ServerSettings
from npurt.serve.front.served_model import ServedModel
from tests.limits import HANG_SECONDS
from tests.llm import tiny
from tests.llm.test_adapters import pairs_of, write
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking
from tests.serve.live import serving
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


BOTH = [{"id": 0, "scale": 1}, {"id": 1, "scale": 0.5}]


@asking
async def test_adapters_are_listed_and_their_scales_are_set():
    client = Client("x", settings=ServerSettings(lora=[("a.gguf", 1.0), ("b.gguf", 0.5)]))

    async def used(**fields):
        assert (await client("/completion", {"prompt": "a"} | fields)).status == 200
        return client.backend.submitted[-1].scales

    assert (await client("/lora-adapters")).json == [
        {"id": 0, "path": "a.gguf", "scale": 1.0}, {"id": 1, "path": "b.gguf", "scale": 0.5}
    ]  # fmt: skip
    assert await used() == await used(lora=BOTH) == [1.0, 0.5]
    assert await used(lora=[{"id": 1, "scale": 2}]) == [0.0, 2.0]
    assert await used(lora=[]) == [0.0, 0.0]
    assert (await client("/lora-adapters", [{"id": 0, "scale": 0.25}])).json == {"success": True}
    assert [each["scale"] for each in (await client("/lora-adapters")).json] == [0.25, 0.0]
    assert await used() == [0.25, 0.0]
    assert await used(lora=BOTH) == [1.0, 0.5]


@asking
async def test_a_server_without_adapters_has_none():
    client = Client("x")
    assert (await client("/lora-adapters")).json == []
    assert (await client("/completion", {"prompt": "a", "lora": []})).status == 200
    assert client.backend.submitted[-1].scales is None


@pytest.mark.parametrize(
    ("lora", "words"),
    [([*BOTH, {"id": 2, "scale": 0}], "has 2"), ([{"id": 0}], "scale"), ("a.gguf", "list"),
     ([{"id": -1, "scale": 1}], "id"), ([{"id": 0, "scale": "1"}], "scale"), ([5], "object"),
     (BOTH * 33, "list of 66")],
)  # fmt: skip
@asking
async def test_wrong_adapters_are_refused(lora, words):
    client = Client("x", settings=ServerSettings(lora=[("a.gguf", 1.0), ("b.gguf", 0.5)]))
    for path, body in (("/completion", {"prompt": "a", "lora": lora}), ("/lora-adapters", lora),
                       ("/v1/chat/completions", SAY_HI | {"lora": lora})):  # fmt: skip
        reply = await client(path, body)
        assert reply.status == 400
        assert words in reply.json["error"]["message"]
    assert (await client("/lora-adapters", {"id": 0})).status == 400
    assert [each["scale"] for each in (await client("/lora-adapters")).json] == [1.0, 0.5]


def test_requests_with_other_scales_have_the_text_of_a_model_with_these_scales(tmp_path):
    path, adapter = tiny.path("llama3", "q8_0"), tmp_path / "a.gguf"
    write(adapter, pairs_of(tiny.path("llama3", "f32")))
    greedy = {"prompt": "Hello", "n_predict": 12, "temperature": 0, "ignore_eos": True}

    def alone(scale):
        with npurt.Llama(path, lora=(adapter, scale), n_ctx=128, progress=False) as llm:
            return llm.generate("Hello", max_tokens=12, temperature=0, ignore_eos=True)

    scales = [1.0, 0.5, 0.0, 1.0]
    wanted = {scale: alone(scale) for scale in set(scales)}
    assert len(set(wanted.values())) == 3
    settings = {"lora": [("a.gguf", 1.0)]}
    with serving(
        tmp_path, engine="npurt.serve.engine", path=path, settings=settings, n_ctx=128,
        lora=[(str(adapter), 1.0)],
    ) as server, ThreadPoolExecutor(8) as threads:  # fmt: skip

        def text(scale, **fields):
            asked = {} if scale is None else {"lora": [{"id": 0, "scale": scale}]}
            status, answer = server.post("/completion", greedy | asked | fields)
            assert status == 200, answer
            return answer["content"]

        assert text(None) == wanted[1.0]
        assert list(threads.map(text, scales * 2)) == [wanted[scale] for scale in scales * 2]
        status, answer = server.post("/completion", greedy | {"lora": [{"id": 0, "scale": 1e300}]})
        assert (status, "scale" in answer["error"]["message"]) == (400, True)
        assert text(0.5) == wanted[0.5]  # the engine continues after a scale that is too large
        assert server.post("/lora-adapters", [{"id": 0, "scale": 0.5}])[0] == 200
        assert text(None) == wanted[0.5]
        assert server.settles("llamacpp:requests_processing", 0)


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
