"""/v1/chat/completions, and details of its responses on which clients depend."""

import pytest

from npurt.serve.front.served_model import ServedModel
from tests.llm import tiny
from tests.serve.client import SAY_HI, Client, asking, served

CHAT = "/v1/chat/completions"
STREAM = SAY_HI | {"stream": True}


def user(text):
    return {"messages": [{"role": "user", "content": text}]}


def text_of(events):
    """Return the text of a stream with one choice."""
    deltas = [event["choices"][0]["delta"] for event in events[:-1] if event["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


@asking
async def test_an_answer_has_this_form():
    reply = await Client("Hello")(CHAT, SAY_HI)
    answer = reply.json

    assert reply.status == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    tokens = len(served().tokenizer.encode("Hello", add_bos=False))
    prompt = len(served().encode_prompt("<user>hi[THINK]<assistant>"))
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["usage"]["total_tokens"] == prompt + tokens


@asking
async def test_a_stream_begins_with_the_role_and_ends_with_done():
    reply = await Client("Hello, you")(CHAT, STREAM)
    events = reply.events

    assert reply.headers["content-type"].startswith("text/event-stream")
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == "[DONE]"
    assert text_of(events) == "Hello, you"
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events[:-1]}) == 1
    assert events[0]["object"] == "chat.completion.chunk"


@asking
async def test_the_reason_of_the_end_comes_last_and_once():
    events = (await Client("Hello")(CHAT, STREAM)).events[:-1]
    reasons = [event["choices"][0]["finish_reason"] for event in events]

    assert reasons[:-1] == [None] * (len(events) - 1)
    assert reasons[-1] == "stop"
    assert events[-1]["choices"][0]["delta"] == {}


@asking
async def test_usage_in_a_stream_comes_only_when_asked_for_and_with_no_choices():
    client = Client("Hello")
    asked = (await client(CHAT, STREAM | {"stream_options": {"include_usage": True}})).events
    whole = (await client(CHAT, SAY_HI)).json["usage"]

    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"] == whole
    assert all(event["usage"] is None for event in asked[:-2])
    assert all("usage" not in event for event in (await client(CHAT, STREAM)).events[:-1])


@pytest.mark.parametrize("stop", ["lo, w", ["xyz", "lo, w", "world"]])
@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_a_stop_text_is_cut_out_also_across_tokens(stop, stream):
    client = Client("Hello, world")
    reply = await client(CHAT, SAY_HI | {"stop": stop, "stream": stream})

    if stream:
        assert text_of(reply.events) == "Hel"
        assert reply.events[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert reply.json["choices"][0]["message"]["content"] == "Hel"
        assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert not client.backend.busy


@asking
async def test_a_text_that_could_become_a_stop_text_is_shown_when_it_does_not():
    reply = await Client("Hello, wonder")(CHAT, STREAM | {"stop": [", world", "zz"]})
    assert text_of(reply.events) == "Hello, wonder"


@asking
async def test_no_character_is_split():
    ids = [b for c in "é€🙂" for b in served().tokenizer.encode(c, add_bos=False)]
    assert len(ids) > 3  # the tiny vocabulary has these as single bytes
    reply = await Client("aé€🙂b")(CHAT, STREAM)
    pieces = [e["choices"][0]["delta"].get("content", "") for e in reply.events[:-1]]

    assert "".join(pieces) == "aé€🙂b"
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@asking
async def test_both_names_limit_the_length(name):
    answer = (await Client()(CHAT, SAY_HI | {name: 5})).json

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


@asking
async def test_the_newer_name_of_the_length_wins():
    body = SAY_HI | {"max_tokens": 9, "max_completion_tokens": 4}
    assert (await Client()(CHAT, body)).json["usage"]["completion_tokens"] == 4


@asking
async def test_parts_of_a_content_are_joined():
    client = Client("x")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await client(CHAT, user(parts))
    await client(CHAT, user("ab"))

    assert client.backend.submitted[0].tokens == client.backend.submitted[1].tokens


@asking
async def test_a_developer_is_the_system_where_the_template_knows_no_developer():
    client = Client("x")
    for role in ("developer", "system"):
        await client(CHAT, {"messages": [{"role": role, "content": "a"}]})

    assert client.backend.submitted[0].tokens == client.backend.submitted[1].tokens


@asking
async def test_arguments_of_earlier_calls_are_objects_for_the_template():
    client = Client("x")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    await client(CHAT, {"messages": messages})

    said = served().tokenizer.decode(client.backend.submitted[0].tokens)
    assert '<assistant>[CALL]f{"a": 1}<tool>r' in said


@asking
async def test_unknown_fields_are_ignored():
    body = SAY_HI | {"store": True, "metadata": {"a": 1}, "service_tier": "auto", "user": "u"}
    assert (await Client("x")(CHAT, body)).status == 200


WRONG = [
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": ["hi"]}, "messages[0]"),
    (SAY_HI | {"max_tokens": "many"}, "max_tokens"),
    (SAY_HI | {"max_tokens": 1.5}, "max_tokens"),
    (SAY_HI | {"temperature": "hot"}, "temperature"),
    (SAY_HI | {"stream": "yes"}, "stream"),
    (SAY_HI | {"stream_options": 3}, "stream_options"),
    (SAY_HI | {"stop": [-1]}, "stop[0]"),
    (SAY_HI | {"stop": ["a"] * 17}, "stop"),
    (SAY_HI | {"n": 9}, "n"),
    (SAY_HI | {"n": 0}, "n"),
    (SAY_HI | {"model": 5}, "model"),
    (SAY_HI | {"logit_bias": {"5": "x"}}, "logit_bias"),
    (SAY_HI | {"logit_bias": {"99999": 1}}, "logit_bias"),
    (SAY_HI | {"stop": [99999]}, "stop"),
    (SAY_HI | {"top_logprobs": 2}, "top_logprobs"),
    (SAY_HI | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (SAY_HI | {"response_format": {"type": "xml"}}, "response_format"),
    (SAY_HI | {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda v: str(v)[:40])
@asking
async def test_what_is_wrong_is_named(body, param):
    reply = await Client("x")(CHAT, body)
    error = reply.json["error"]

    assert reply.status == 400
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "; " in error["message"]


@pytest.mark.parametrize(
    "option", [{"temperature": -1}, {"top_p": 2}, {"min_p": -0.1}, {"repeat_penalty": 0}]
)
@asking
async def test_settings_out_of_range_are_refused(option):
    reply = await Client("x")(CHAT, SAY_HI | option)

    assert reply.status == 400
    assert next(iter(option)) in reply.json["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_a_prompt_that_is_too_long_is_refused_before_the_stream_begins(stream):
    client = Client("x", n_ctx=32)
    reply = await client(CHAT, user("word " * 100) | {"stream": stream})

    assert reply.status == 400
    assert reply.json["error"]["code"] == "context_length_exceeded"
    assert not client.backend.submitted


@asking
async def test_a_full_context_is_a_length():
    answer = (await Client(n_ctx=32)(CHAT, SAY_HI)).json
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
@asking
async def test_an_error_of_the_engine_ends_the_answer(stream):
    reply = await Client("Hello, you")(CHAT, SAY_HI | {"seed": 777, "stream": stream})

    if stream:
        assert reply.status == 200
        assert reply.events[-1]["error"]["message"].startswith("the fake fails")
        assert "[DONE]" not in reply.events
    else:
        assert reply.status == 500


@asking
async def test_any_name_is_served_by_the_only_model():
    answer = (await Client("x")(CHAT, SAY_HI | {"model": "gpt-3.5-turbo"})).json
    assert answer["model"] == "tiny"


@asking
async def test_log_probabilities_have_bytes():
    body = SAY_HI | {"logprobs": True, "top_logprobs": 2}
    choice = (await Client("é")(CHAT, body)).json["choices"][0]
    content = choice["logprobs"]["content"]

    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "é"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"] == -0.5


@asking
async def test_log_probabilities_of_a_stream_are_those_of_the_whole():
    body = SAY_HI | {"logprobs": True, "stop": ", w"}
    client = Client("Hé, world")
    whole = (await client(CHAT, body)).json["choices"][0]["logprobs"]["content"]
    events = (await client(CHAT, body | {"stream": True})).events[:-1]
    found = [e["choices"][0]["logprobs"] for e in events]

    assert [entry for each in found if each for entry in each["content"]] == whole
    assert bytes(b for entry in whole for b in entry["bytes"]).decode() == "Hé"


@asking
async def test_several_choices_are_different_and_repeatable():
    client = Client()
    body = SAY_HI | {"n": 3, "seed": 5, "max_tokens": 8}
    first = (await client(CHAT, body)).json
    texts = [choice["message"]["content"] for choice in first["choices"]]
    again = (await client(CHAT, body)).json

    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice["message"]["content"] for choice in again["choices"]] == texts
    assert first["system_fingerprint"] == again["system_fingerprint"]
    assert first["usage"]["completion_tokens"] == 24


@asking
async def test_choices_of_a_stream_carry_their_index():
    client = Client()
    body = SAY_HI | {"n": 3, "seed": 5, "max_tokens": 8}
    whole = (await client(CHAT, body)).json["choices"]
    texts = ["", "", ""]
    for event in (await client(CHAT, body | {"stream": True})).events[:-1]:
        choice = event["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")

    assert texts == [choice["message"]["content"] for choice in whole]


@asking
async def test_without_a_seed_texts_differ():
    client = Client()
    texts = {
        (await client(CHAT, SAY_HI | {"max_tokens": 12, "seed": seed})).json["choices"][0][
            "message"
        ]["content"]
        for seed in (None, -1, None)
    }
    assert len(texts) == 3


@asking
async def test_what_is_null_is_as_if_it_were_left_out():
    names = ("max_tokens", "temperature", "stop", "stream", "n", "seed", "logprobs", "tools",
             "response_format", "stream_options", "logit_bias", "model")  # fmt: skip
    assert (await Client("x")(CHAT, SAY_HI | dict.fromkeys(names))).status == 200


@asking
async def test_lone_surrogates_are_refused_and_do_no_harm():
    client = Client("x")
    reply = await client(CHAT, b'{"messages":[{"role":"user","content":"\\ud800"}]}')
    assert reply.status == 400
    assert "surrogate" in reply.json["error"]["message"]
    assert (await client(CHAT, b'{"messages":[{"role":"u","content":"x"}],"stop":"\\ud800"}')
            ).status == 200  # fmt: skip


@asking
async def test_a_template_that_thinks_is_told_to():
    client = Client("x")
    await client(CHAT, SAY_HI | {"chat_template_kwargs": {"enable_thinking": True}})
    assert "[THINK]" in served().tokenizer.decode(client.backend.submitted[0].tokens)


@asking
async def test_a_model_without_a_template_says_so(tmp_path_factory):
    file = tiny.without_key(tiny.read(tiny.path("llama3", "q8_0")), "tokenizer.chat_template")
    path = tiny.write(file, tmp_path_factory.mktemp("plain"))
    client = Client("x", model=ServedModel(path))
    reply = await client(CHAT, SAY_HI)

    assert reply.status == 400
    assert reply.json["error"]["code"] == "no_chat_template"


@pytest.mark.parametrize("stream", [False, True])
@asking
async def test_a_final_message_of_the_assistant_is_continued(stream):
    client = Client(" world")
    begun = {"role": "assistant", "content": "Hello"}
    body = {"messages": [*SAY_HI["messages"], begun], "continue_final_message": True}
    reply = await client(CHAT, body | {"stream": stream})
    if stream:
        said = "".join(each["choices"][0]["delta"].get("content", "") for each in reply.events[:-1])
    else:
        said = reply.json["choices"][0]["message"]["content"]

    assert said == " world"
    assert client.prompt.endswith("<assistant>Hello")
    counted = await client(f"{CHAT}/input_tokens", body)
    assert counted.json["input_tokens"] == len(client.backend.submitted[-1].tokens)
