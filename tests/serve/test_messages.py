"""Anthropic's interface: /v1/messages."""

import asyncio
import json

import anthropic
import pytest

from npurt.serve.front.front import ServerSettings
from tests.limits import HANG_SECONDS
from tests.serve.client import SAY_HI, asking
from tests.serve.test_tools import CALL, PARAMETERS, THINKING, TIME, client

PATH = "/v1/messages"
HI = SAY_HI | {"max_tokens": 500}
TOOLS = [
    {"name": "weather", "description": "d", "input_schema": PARAMETERS},
    {"name": "time", "input_schema": {"type": "object"}},
    {"type": "web_search_20250305", "name": "web_search"},
]


@asking
async def test_an_answer_has_this_form():
    answer = (await client("Hello")(PATH, HI | {"model": "claude-sonnet-5"})).json

    assert answer["id"].startswith("msg_")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    assert answer["content"] == [{"type": "text", "text": "Hello"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] > 0


@pytest.mark.parametrize(
    ("change", "reason", "stopped"),
    [
        ({"stop_sequences": ["x", "lo"]}, "stop_sequence", "lo"),
        ({"max_tokens": 1}, "max_tokens", None),
    ],
)
@asking
async def test_the_reason_of_the_end(change, reason, stopped):
    for stream in (False, True):
        reply = await client("Hello")(PATH, HI | change | {"stream": stream})
        found = reply.events[-2][1]["delta"] if stream else reply.json
        assert (found["stop_reason"], found["stop_sequence"]) == (reason, stopped)


@asking
async def test_events_of_a_stream():
    say = f"<think>\nhm\n</think>\nWell.{CALL}{TIME}"
    asked = client(say, THINKING)
    events = (await asked(PATH, HI | {"stream": True, "tools": TOOLS})).events
    names = [name for name, _ in events]
    blocks = {}
    for name, data in events:
        assert data["type"] == name
        if name == "content_block_start":
            assert data["index"] == len(blocks)
            blocks[data["index"]] = dict(data["content_block"], parts="")
        if name == "content_block_delta" and data["delta"]["type"] != "signature_delta":
            blocks[data["index"]]["parts"] += data["delta"][{
                "text_delta": "text", "thinking_delta": "thinking",
                "input_json_delta": "partial_json"}[data["delta"]["type"]]]  # fmt: skip

    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop") == 4
    assert [block["type"] for block in blocks.values()] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert [blocks[0]["parts"], blocks[1]["parts"]] == ["hm", "Well."]
    assert json.loads(blocks[2]["parts"]) == {"city": "Rome"}
    assert blocks[2]["input"] == {}
    assert blocks[2]["id"].startswith("toolu_")
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


@asking
async def test_a_whole_answer_has_the_same_blocks():
    asked = client(f"<think>\nhm\n</think>\nWell.{CALL}", THINKING)
    content = (await asked(PATH, HI | {"tools": TOOLS})).json["content"]

    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    assert content[2]["input"] == {"city": "Rome"}


@asking
async def test_silence_is_broken_by_pings():
    asked = client("Hello", settings=ServerSettings(ping=0.01))
    asked.engine.go.clear()
    task = asyncio.create_task(asked(PATH, HI | {"stream": True}))
    await asyncio.sleep(0.05)
    asked.engine.go.set()
    assert ("ping", {"type": "ping"}) in (await task).events


@asking
async def test_messages_become_those_of_the_template():
    asked = client("x", THINKING)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"k": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
            {"type": "text", "text": "go"}]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "be"}, {"type": "text", "text": " kind"}]
    assert (await asked(PATH, {"messages": messages, "system": system})).status == 200
    assert asked.prompt.endswith(
        '<system>be kind<user>q<assistant>a[CALL]f{"k": 1}<tool>r<user>go<assistant>'
    )


@asking
async def test_the_last_message_may_begin_the_answer():
    asked = client("x")
    messages = [*SAY_HI["messages"], {"role": "assistant", "content": "Well, "}]
    await asked(PATH, {"messages": messages})
    assert asked.prompt.endswith("<user>hi<assistant>Well, ")


@pytest.mark.parametrize(
    ("thinking", "on"), [(None, False), ({"type": "enabled", "budget_tokens": 9}, True),
                         ({"type": "disabled"}, False)],
)  # fmt: skip
@asking
async def test_a_model_thinks_when_it_is_asked_to(thinking, on):
    asked = client("x", THINKING)
    await asked(PATH, HI | {"thinking": thinking})
    assert ("[THINK]" in asked.prompt) is on


@asking
async def test_tokens_are_counted():
    asked = client("x")
    body = HI | {"tools": TOOLS, "system": "s"}
    counted = (await asked("/v1/messages/count_tokens", body)).json
    usage = (await asked(PATH, body)).json["usage"]
    assert counted == {"input_tokens": usage["input_tokens"]}


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"max_tokens": "x"},
        {"system": 5},
        {"tools": [{"input_schema": {}}]},
        {"tools": TOOLS, "tool_choice": {"type": "sometimes"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}},
        {"stop_sequences": [5]},
    ],
)
@asking
async def test_errors_have_anthropics_form(change):
    reply = await client("x")(PATH, HI | change)

    assert reply.status == 400
    assert reply.json["type"] == "error"
    assert reply.json["error"].keys() == {"type", "message"}
    assert reply.json["error"]["type"] == "invalid_request_error"


@asking
async def test_an_error_in_a_stream_is_an_event():
    body = HI | {"stream": True, "seed": 777, "max_tokens": 9}
    events = (await client("Hello, you")(PATH, body)).events
    name, data = events[-1]
    assert (name, data["type"]) == ("error", "error")
    assert "the fake fails" in data["error"]["message"]


def test_anthropics_client_reads_it(real):
    with anthropic.Anthropic(
        base_url=real.url, api_key="none", timeout=HANG_SECONDS, max_retries=0
    ) as found:
        asked = {"model": "x", "max_tokens": 8, **SAY_HI, "extra_body": {"seed": 5}}
        whole = found.messages.create(**asked)
        with found.messages.stream(**asked) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        tool = {"name": "f", "input_schema": {
            "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
            "additionalProperties": False}}  # fmt: skip
        called = found.messages.create(
            **asked | {"max_tokens": 200}, tools=[tool], tool_choice={"type": "tool", "name": "f"}
        )
        counted = found.messages.count_tokens(model="x", **SAY_HI)
        with pytest.raises(anthropic.BadRequestError):
            found.messages.create(**asked | {"messages": []})

    assert text == whole.content[0].text == final.content[0].text
    assert called.stop_reason == "tool_use"
    assert called.content[0].input["a"] in (1, 2)
    assert counted.input_tokens > 0
