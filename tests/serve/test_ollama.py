"""Ollama's interface."""

import asyncio
import contextlib
import json

import ollama
import pytest

from npurt.serve.front.front import ServerSettings
from npurt.version import __version__
from tests.limits import HANG_SECONDS
from tests.serve.client import SAY_HI, Client, asking
from tests.serve.test_clients import HI, Answer
from tests.serve.test_openai_text import coder  # noqa: F401  a fixture
from tests.serve.test_tools import CALL, THINKING, TOOLS, client

CHAT = "/api/chat"
WHOLE = SAY_HI | {"stream": False}


@asking
async def test_an_answer_has_this_form():
    answer = (await client("Hello")(CHAT, WHOLE)).json

    assert answer["message"] == {"role": "assistant", "content": "Hello"}
    assert (answer["model"], answer["done"], answer["done_reason"]) == ("tiny", True, "stop")
    assert answer["created_at"].endswith("Z")
    assert answer["eval_count"] > 0
    assert answer["total_duration"] >= answer["prompt_eval_duration"] + answer["eval_duration"]


@asking
async def test_a_stream_is_the_default_and_has_a_line_for_each_piece():
    reply = await client("Hello")(CHAT, SAY_HI)
    lines = reply.lines

    assert reply.headers["content-type"] == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in lines) == "Hello"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_thoughts_and_calls_stand_apart(stream):
    asked = client(f"<think>\nhm\n</think>\nWell.{CALL}", THINKING)
    reply = await asked(CHAT, SAY_HI | {"tools": TOOLS, "stream": stream})
    found = [line["message"] for line in (reply.lines if stream else [reply.json])]

    assert "".join(each.get("thinking", "") for each in found) == "hm"
    assert "".join(each["content"] for each in found) == "Well."
    assert [call for each in found for call in each.get("tool_calls", ())] == [
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    ]


@asking
async def test_options_and_the_format_reach_the_engine():
    asked = client("{}")
    chosen = {"num_predict": 7, "temperature": 0.25, "top_k": 3, "seed": 5, "stop": ["x"],
              "num_ctx": 99}  # fmt: skip
    await asked(CHAT, WHOLE | {"options": chosen, "format": "json", "keep_alive": "5m"})
    await asked(CHAT, WHOLE | {"format": {"type": "object"}})
    first, second = asked.backend.submitted

    assert first.max_tokens == 7
    assert (first.sampling["temperature"], first.sampling["top_k"], first.sampling["seed"]) == (
        0.25, 3, 5,
    )  # fmt: skip
    assert first.response_format == {"type": "json_object"}
    assert second.response_format["json_schema"] == {"schema": {"type": "object"}}


@asking
async def test_a_long_chat_loses_its_oldest_turns_unless_truncate_is_false():
    asked = Client("ok", n_ctx=200)
    turns = [
        turn
        for i in range(40)
        for turn in ({"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a"})
    ]
    talk = [{"role": "system", "content": "S"}, *turns, {"role": "user", "content": "last"}]
    body = {"messages": talk, "stream": False, "options": {"num_predict": 4}}
    assert (await asked("/api/chat", body)).status == 200
    assert "S" in asked.prompt
    assert "last" in asked.prompt
    assert "q39" in asked.prompt
    assert "q0<" not in asked.prompt
    refused = await asked("/api/chat", body | {"truncate": False})
    assert refused.status == 400
    assert "exceeds the available context size" in refused.json["error"].lower()


@asking
async def test_a_cut_text_is_told():
    answer = (await client("Hello")(CHAT, WHOLE | {"options": {"num_predict": 1}})).json
    assert answer["done_reason"] == "length"


@asking
async def test_generate_answers_and_continues(coder):  # noqa: F811
    asked = client("Hello")
    body = {"prompt": "hi", "system": "be kind", "stream": False}
    assert (await asked("/api/generate", body)).json["response"] == "Hello"
    assert asked.prompt.endswith("<system>be kind<user>hi[THINK]<assistant>")
    lines = (await asked("/api/generate", {"prompt": "Once", "raw": True})).lines
    assert "".join(line["response"] for line in lines) == "Hello"
    assert asked.prompt.endswith("Once")
    filler = Client("x", model=coder)
    await filler("/api/generate", {"prompt": "a", "suffix": "b"})
    assert filler.backend.submitted[0].tokens[-1] == 302


@asking
async def test_without_a_prompt_the_model_is_loaded():
    for path, body in (("/api/generate", {"model": "x"}), (CHAT, {"messages": []})):
        answer = (await client("x")(path, body)).json
        assert (answer["done"], answer["done_reason"]) == (True, "load")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}),
        (CHAT, SAY_HI | {"format": 5}),
        (CHAT, SAY_HI | {"options": []}),
        (CHAT, SAY_HI | {"options": {"temperature": "x"}}),
        (CHAT, SAY_HI | {"think": 5}),
        ("/api/generate", {"prompt": 5}),
        ("/api/generate", {"prompt": "x", "images": ["aa"]}),
    ],
)
@asking
async def test_errors_have_ollamas_form(path, body):
    reply = await client("x")(path, body)
    assert reply.status == 400
    assert reply.json.keys() == {"error"}


@asking
async def test_an_error_in_a_stream_is_a_line():
    lines = (await client("x")(CHAT, SAY_HI | {"options": {"seed": 666}})).lines
    assert "666" in lines[-1]["error"]


@asking
async def test_silence_is_broken_by_lines():
    asked = client("Hello", settings=ServerSettings(ping=0.01))
    asked.engine.go.clear()
    tasks = [
        asyncio.create_task(asked(path, body))
        for path, body in (
            (CHAT, SAY_HI),
            ("/api/generate", {"prompt": "x"}),
            ("/api/generate", {"prompt": "x", "raw": True}),
        )
    ]
    await asyncio.sleep(0.2)
    asked.engine.go.set()
    for task in tasks:
        lines = (await task).lines
        texts = [line.get("response", line.get("message", {}).get("content")) for line in lines]
        assert texts.count("") >= 3  # one of the empty texts is the end of the stream


@asking
async def test_the_model_is_described_and_nothing_can_be_changed():
    asked = client("x", THINKING)
    (model,) = (await asked("/api/tags")).json["models"]
    shown = (await asked("/api/show", {"model": "any"})).json

    assert (await asked("/api/version")).json == {"version": __version__}
    assert model["name"] == "tiny"
    assert model["details"]["family"] == "llama"
    assert (await asked("/api/ps")).json["models"][0]["context_length"] == 1024
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["general.architecture"] == "llama"
    json.dumps(shown)
    for path in ("pull", "push", "create", "delete", "copy", "blobs/sha256:0"):
        assert (await asked(f"/api/{path}", {"model": "x"})).status == 404


def test_ollamas_client_reads_it(real):
    found = ollama.Client(host=real.url, timeout=HANG_SECONDS)
    with contextlib.closing(found._client):  # ollama.Client has no public close()
        check_ollamas_client(found)


def check_ollamas_client(found):
    chosen = {"num_predict": 8, "seed": 5}
    whole = found.chat(model="x", messages=HI, options=chosen)
    parts = list(found.chat(model="x", messages=HI, options=chosen, stream=True))
    formed = found.chat(model="x", messages=HI, format=Answer.model_json_schema())
    text = found.generate(model="x", prompt="hi", raw=True, options=chosen)

    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.eval_count == parts[-1].eval_count
    Answer.model_validate_json(formed.message.content)
    assert text.response
    assert [model.model for model in found.list().models] == ["tiny"]
    assert found.show("tiny").capabilities
    with pytest.raises(ollama.ResponseError):
        found.chat(model="x", messages=[{"role": "user", "content": "x"}], options={"top_p": 7})
