"""Tools and thoughts in chats, and structured output."""

import json
import time

import pytest

from npurt.serve.front.front import ServerSettings
from tests.serve.client import SAY_HI, TEMPLATE, Client, asking, served

CHAT = "/v1/chat/completions"
HERMES = TEMPLATE + "{# <tool_call> #}"
THINKING = TEMPLATE + "{# <think> </think> <tool_call> #}"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time"}},
    {"type": "web_search"},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TIME = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
ASK = SAY_HI | {"tools": TOOLS}


def client(say, template=HERMES, **options):
    return Client(say, model=served("llama3", template), **{"n_ctx": 1024, **options})


def deltas(events):
    return [event["choices"][0]["delta"] for event in events[:-1]]


@asking
async def test_a_call_has_this_form():
    choice = (await client(CALL)(CHAT, ASK)).json["choices"][0]
    (call,) = choice["message"]["tool_calls"]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["type"] == "function"
    assert call["id"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}


@asking
async def test_calls_of_a_stream_have_an_index_on_every_delta_and_a_name_on_the_first():
    events = (await client(f"Well.{CALL}\n{TIME}")(CHAT, ASK | {"stream": True})).events
    calls = {}
    for delta in deltas(events):
        for each in delta.get("tool_calls", ()):
            seen = calls.setdefault(each["index"], [])
            assert (not seen) == ("id" in each) == ("name" in each["function"]) == ("type" in each)
            seen.append(each)
    arguments = ["".join(d["function"]["arguments"] for d in calls[i]) for i in (0, 1)]

    assert [calls[i][0]["function"]["name"] for i in (0, 1)] == ["weather", "time"]
    assert [json.loads(text) for text in arguments] == [{"city": "Rome"}, {}]
    assert calls[0][0]["id"] != calls[1][0]["id"]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert "".join(delta.get("content", "") for delta in deltas(events)) == "Well."


@asking
async def test_a_text_without_a_call_is_a_text():
    choice = (await client("Sunny.")(CHAT, ASK)).json["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Sunny."
    assert "tool_calls" not in choice["message"]


@asking
async def test_without_tools_nothing_is_taken_for_a_call():
    for body in (SAY_HI, ASK | {"tool_choice": "none"}):
        choice = (await client(CALL)(CHAT, body)).json["choices"][0]
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_one_call_alone_if_only_one_is_wanted(stream):
    asked = client(f"{CALL}{TIME}{'x' * 99}")
    body = ASK | {"parallel_tool_calls": False, "stream": stream}
    reply = await asked(CHAT, body)
    if stream:
        calls = [c for delta in deltas(reply.events) for c in delta.get("tool_calls", ())]
        assert reply.events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        calls = reply.json["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather"]
    assert not asked.backend.busy


@asking
async def test_the_template_gets_functions_only():
    asked = client("x")
    await asked(CHAT, ASK)
    said = asked.model.tokenizer.decode(asked.backend.submitted[0].tokens)

    assert "weather" in said
    assert "web_search" not in said


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, ["time"]),
    ],
)
@asking
async def test_a_forced_call_follows_from_a_schema(choice, names):
    asked = client('{"name": "time", "arguments": {"zone": "UTC"}}')
    found = (await asked(CHAT, ASK | {"tool_choice": choice})).json["choices"][0]
    schema = asked.backend.submitted[0].response_format["json_schema"]["schema"]

    assert found["message"]["tool_calls"][0]["function"]["name"] == "time"
    assert found["finish_reason"] == "tool_calls"
    assert [each["properties"]["name"]["const"] for each in schema["anyOf"]] == names


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS[:1] * 129}, "tools"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
    ],
)
@asking
async def test_tools_that_make_no_sense_are_refused(change, param):
    reply = await client("x")(CHAT, ASK | change)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@asking
async def test_a_template_that_knows_no_tools_gets_them_as_text():
    asked = client(CALL, "{% for m in messages %}{{ m.content }}{% endfor %}")
    reply = await asked(CHAT, ASK)

    assert '{"name": "weather"' in asked.prompt
    assert reply.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"


# --- Thoughts ---------------------------------------------------------------------------------


@asking
async def test_thoughts_stand_apart():
    asked = client("<think>\nhm\n</think>\n\nYes", THINKING)
    message = (await asked(CHAT, SAY_HI)).json["choices"][0]["message"]
    parts = deltas((await asked(CHAT, SAY_HI | {"stream": True})).events)
    whole = (await asked(CHAT, SAY_HI | {"reasoning_format": "none"})).json["choices"][0]

    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes")
    assert "".join(part.get("reasoning_content", "") for part in parts) == "hm"
    assert "".join(part.get("content", "") for part in parts) == "Yes"
    assert whole["message"]["content"] == "<think>\nhm\n</think>\n\nYes"


@asking
async def test_a_thought_and_a_call():
    asked = client(f"<think>hm</think>\n{CALL}", THINKING)
    message = (await asked(CHAT, ASK)).json["choices"][0]["message"]

    assert message["reasoning_content"] == "hm"
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


# --- Forms ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": PARAMETERS}},
    ],
)
@asking
async def test_a_form_reaches_the_engine(form):
    asked = client("{}")
    assert (await asked(CHAT, SAY_HI | {"response_format": form})).status == 200
    assert asked.backend.submitted[0].response_format == form


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
         "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {
            "enum": ["x" * 70000]}}}}, "response_format"),
        ({"grammar": "nonsense ::"}, "grammar"),
    ],
)  # fmt: skip
@asking
async def test_a_form_that_makes_no_sense_is_refused_before_the_stream(body, param):
    reply = await client("x")(CHAT, SAY_HI | body | {"stream": True})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


LONG = '<tool_call>{"name": "weather", "arguments": {"city": "' + "x" * 60 + '"}}</tool_call>'


@asking
async def test_a_call_that_takes_long_shows_signs_of_life():
    """The tokens of a call are held back until it is whole, so the server sends keep-alives."""
    asked = client(LONG, settings=ServerSettings(ping=0.02))
    step = asked.backend.step

    def slowly():
        time.sleep(0.005)
        return step()

    asked.backend.step = slowly
    events = (await asked(CHAT, ASK | {"stream": True})).events
    assert sum(delta == {} for delta in deltas(events)) >= 4


@pytest.mark.parametrize("text", ["what does <think> mean?", "<think>", "<think>\n"])
@asking
async def test_a_user_who_writes_of_thoughts_begins_none(text):
    asked = client("Yes", THINKING)
    body = {"messages": [{"role": "user", "content": text}]}
    message = (await asked(CHAT, body)).json["choices"][0]["message"]
    assert message["content"] == "Yes"
    assert "reasoning_content" not in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
@asking
async def test_arguments_are_always_json(number):
    text = f'<tool_call>{{"name": "weather", "arguments": {{"city": {number}}}}}</tool_call>'
    choice = (await client(text)(CHAT, ASK)).json["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


# --- Calls in every interface -------------------------------------------------------------------

LOOSE = '```json\n{"name": "weather", "arguments": {"city": "Rome"}}\n```'
QUOTED = 'Write {"name": "weather", "arguments": {"city": "Rome"}} for it.'
FLAT = [{"type": "function", "name": "weather", "parameters": PARAMETERS}]
INPUT = [{"name": "weather", "input_schema": PARAMETERS}]
ASKED = [
    (CHAT, SAY_HI | {"tools": TOOLS}),
    ("/v1/responses", {"input": "hi", "tools": FLAT}),
    ("/v1/messages", SAY_HI | {"max_tokens": 200, "tools": INPUT}),
    ("/api/chat", SAY_HI | {"tools": TOOLS}),
]


async def calls_and_text(asked, path, body, stream):
    """Return the calls, as name and arguments, and the text of an answer."""
    reply = await asked(path, body | {"stream": stream})
    assert reply.status == 200
    calls, text = [], ""
    if path == CHAT and stream:
        for delta in deltas(reply.events):
            text += delta.get("content") or ""
            for each in delta.get("tool_calls", ()):
                if "id" in each:
                    calls.append([each["function"]["name"], ""])
                calls[-1][1] += each["function"]["arguments"]
    elif path == CHAT:
        message = reply.json["choices"][0]["message"]
        text = message["content"] or ""
        calls = [list(each["function"].values()) for each in message.get("tool_calls", ())]
    elif path == "/v1/responses":
        events = reply.events if stream else []
        output = events[-1][1]["response"]["output"] if stream else reply.json["output"]
        calls = [[o["name"], o["arguments"]] for o in output if o["type"] == "function_call"]
        text = "".join(o["content"][0]["text"] for o in output if o["type"] == "message")
        pieces = [e["delta"] for name, e in events if name.endswith("arguments.delta")]
        assert not stream or "".join(pieces) == "".join(each[1] for each in calls)
    elif path == "/v1/messages" and stream:
        for _, event in reply.events:
            block, delta = event.get("content_block", {}), event.get("delta", {})
            if block.get("type") == "tool_use":
                calls.append([block["name"], ""])
            if "partial_json" in delta:
                calls[-1][1] += delta["partial_json"]
            text += delta.get("text", "")
    elif path == "/v1/messages":
        content = reply.json["content"]
        calls = [[c["name"], json.dumps(c["input"])] for c in content if c["type"] == "tool_use"]
        text = "".join(c["text"] for c in content if c["type"] == "text")
    else:
        messages = [line["message"] for line in reply.lines] if stream else [reply.json["message"]]
        text = "".join(message["content"] for message in messages)
        found = [c["function"] for message in messages for c in message.get("tool_calls", ())]
        calls = [[each["name"], json.dumps(each["arguments"])] for each in found]
    return [(name, json.loads(arguments)) for name, arguments in calls], text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ASKED)
@asking
async def test_a_call_in_a_fence_is_a_call_and_a_quotation_is_text(path, body, stream):
    asked = client(LOOSE)
    assert await calls_and_text(asked, path, body, stream) == ([("weather", {"city": "Rome"})], "")
    asked.say(QUOTED)
    assert await calls_and_text(asked, path, body, stream) == ([], QUOTED)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ASKED)
@asking
async def test_a_long_call_is_whole_in_every_interface(path, body, stream):
    city = 'a city with \\ and " ' * 12
    text = json.dumps({"name": "weather", "arguments": {"city": city}})
    found = await calls_and_text(client(f"<tool_call>{text}</tool_call>"), path, body, stream)
    assert found == ([("weather", {"city": city})], "")


@asking
async def test_long_arguments_come_in_many_deltas():
    events = (await client(LONG.replace("x" * 60, "x " * 60))(CHAT, ASK | {"stream": True})).events
    pieces = [c for delta in deltas(events) for c in delta.get("tool_calls", ())]
    assert len(pieces) > 10
    assert [("id" in piece) for piece in pieces] == [True] + [False] * (len(pieces) - 1)


@asking
async def test_a_forced_call_that_max_tokens_cuts_off_is_a_call():
    text = '{"name": "weather", "arguments": {"city": "Rome and more of it"}}'
    body = ASK | {"tool_choice": "required", "max_tokens": 30}
    choice = (await client(text)(CHAT, body)).json["choices"][0]
    (call,) = choice["message"]["tool_calls"]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert call["function"]["name"] == "weather"
    assert text.index(call["function"]["arguments"]) > 0
