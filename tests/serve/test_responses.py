"""OpenAI's responses interface: /v1/responses."""

import asyncio
import json

import openai
import pytest

from npurt.serve.front.front import ServerSettings
from tests.serve.client import Client, asking
from tests.serve.test_clients import Answer, client_of
from tests.serve.test_tools import CALL, PARAMETERS, THINKING, client

PATH = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True},
    {"type": "web_search"},
    {"type": "local_shell"},
]
SAY = f"<think>\nhm\n</think>\nWell.{CALL}"


@asking
async def test_a_response_has_this_form():
    found = (await client("Hello")(PATH, {"input": "hi", "instructions": "be kind"})).json
    (item,) = found["output"]

    assert found["id"].startswith("resp_")
    assert (found["object"], found["status"], found["model"]) == ("response", "completed", "tiny")
    assert (found["store"], found["error"], found["instructions"]) == (False, None, "be kind")
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert found["usage"]["total_tokens"] == (
        found["usage"]["input_tokens"] + found["usage"]["output_tokens"]
    )


@asking
async def test_events_of_a_stream_are_numbered_and_end_with_the_response():
    asked = client(SAY, THINKING)
    events = (await asked(PATH, {"input": "hi", "tools": TOOLS, "stream": True})).events
    data = [value for _, value in events]
    names = [name for name, _ in events]
    done = [value["item"] for name, value in events if name == "response.output_item.done"]

    assert [value["type"] for value in data] == names
    assert [value["sequence_number"] for value in data] == list(range(len(data)))
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    assert data[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert [value["output_index"] for name, value in events if name.endswith("item.added")] == [
        0,
        1,
        2,
    ]
    for kind, text in (("output_text", "Well."), ("reasoning_text", "hm")):
        deltas = [value["delta"] for name, value in events if name == f"response.{kind}.delta"]
        assert "".join(deltas) == text
    arguments = [v["delta"] for n, v in events if n == "response.function_call_arguments.delta"]
    assert json.loads("".join(arguments)) == {"city": "Rome"}
    assert data[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


@asking
async def test_the_whole_response_is_that_of_the_stream():
    asked = client(SAY, THINKING)
    whole = (await asked(PATH, {"input": "hi", "tools": TOOLS})).json
    last = (await asked(PATH, {"input": "hi", "tools": TOOLS, "stream": True})).events[-1][1]

    def plain(items):
        return [{k: v for k, v in item.items() if "id" not in k} for item in items]

    assert plain(whole["output"]) == plain(last["response"]["output"])
    assert whole["usage"] == last["response"]["usage"]


@asking
async def test_items_become_messages():
    asked = client("x")
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"k": 1}'},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": "go"},
    ]
    assert (await asked(PATH, {"input": items})).status == 200
    assert asked.prompt.endswith(
        '<system>d<user>q<assistant>[CALL]f{"k": 1}[CALL]g{}<tool>r<assistant>a<user>go'
        "[THINK]<assistant>"
    )


@asking
async def test_a_text_that_is_cut_is_incomplete():
    for stream in (False, True):
        asked = client("Hello")
        reply = await asked(PATH, {"input": "hi", "max_output_tokens": 1, "stream": stream})
        found = reply.events[-1][1]["response"] if stream else reply.json
        assert found["status"] == "incomplete"
        assert found["incomplete_details"] == {"reason": "max_output_tokens"}


@asking
async def test_silence_is_broken_by_events_that_count():
    asked = client("Hello", settings=ServerSettings(ping=0.01))
    asked.engine.go.clear()
    task = asyncio.create_task(asked(PATH, {"input": "hi", "stream": True}))
    await asyncio.sleep(0.05)
    asked.engine.go.set()
    assert [name for name, _ in (await task).events].count("response.in_progress") > 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"max_output_tokens": "x"}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ],
)  # fmt: skip
@asking
async def test_what_is_wrong_is_named(change, param):
    reply = await client("x")(PATH, {"input": "hi"} | change)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@asking
async def test_an_error_in_a_stream_is_an_event():
    body = {"input": "hi", "seed": 777, "stream": True}
    events = (await client("Hello, you")(PATH, body)).events
    name, data = events[-2]
    assert (name, data["type"]) == ("error", "error")
    assert "the fake fails" in data["message"]


def test_openais_client_reads_it(real):
    with client_of(real) as found:
        asked = {"model": "x", "input": "hi", "max_output_tokens": 8,
                 "extra_body": {"seed": 5, "ignore_eos": True}}  # fmt: skip
        whole = found.responses.create(**asked)
        *_, last = found.responses.create(**asked, stream=True)
        parsed = found.responses.parse(
            model="x", input="hi", text_format=Answer, max_output_tokens=200
        )
        tool = openai.pydantic_function_tool(Answer)["function"] | {"type": "function"}
        called = found.responses.create(
            model="x", input="hi", tools=[tool], tool_choice="required", max_output_tokens=200
        )
        with pytest.raises(openai.BadRequestError):
            found.responses.create(model="x", input="hi", previous_response_id="resp_1")

    assert whole.status == "incomplete"
    assert whole.output_text == last.response.output_text
    assert isinstance(parsed.output_parsed, Answer)
    Answer.model_validate_json(called.output[0].arguments)


@asking
async def test_numbers_that_no_answer_could_repeat_are_refused():
    reply = await Client("x")("/v1/responses", b'{"input":"a","metadata":{"a":[-1e999]}}')
    assert reply.status == 400
    assert reply.json["error"]["message"].startswith("the body is no JSON: -1e999 is too large")


@asking
async def test_a_response_that_fails_says_so_last():
    client = Client(n_ctx=1 << 20, settings=ServerSettings(deadline=0.02))
    events = (await client(PATH, {"input": "hi", "stream": True})).events
    name, last = events[-1]
    assert name == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"].keys() == {"code", "message"}
    assert events[-2][0] == "error"
    assert [each["sequence_number"] for _, each in events] == list(range(len(events)))


@asking
async def test_a_text_and_its_calls_are_one_message():
    """Text and calls are joined as the model wrote them, so that the cached prefix is reused."""
    client = Client("x")
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "Well."}]}  # fmt: skip
    calls = [call | {"call_id": "1"}, call | {"call_id": "2"}]
    items = [{"role": "user", "content": "a"}, said, *calls,
             {"type": "function_call_output", "call_id": "1", "output": "ok"}]  # fmt: skip
    await client(PATH, {"input": items})
    prompt = client.model.tokenizer.decode(client.backend.submitted[0].tokens)
    assert prompt.count("<assistant>") == 2
    assert "<assistant>Well.[CALL]f{}[CALL]f{}<tool>ok" in prompt
