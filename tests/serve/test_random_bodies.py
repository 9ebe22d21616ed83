"""Whatever a body holds, the answer is no failure of the server, and nothing stays behind."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.client import Client

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "user", "hi", "text", "\ud800", "é" * 50, "json_object", "auto"])
    | st.integers(),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["type", "text", "role", "content", "name"]), inner),
    max_leaves=6,
)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "tool", "assistant", "developer"])},
        optional={
            "content": st.text(max_size=20) | ANY,
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "id": ANY,
                        "type": ANY,
                        "function": st.fixed_dictionaries(
                            {}, optional={"name": ANY, "arguments": st.sampled_from(["{", "{}"])}
                        ) | ANY,
                    },
                ) | ANY,
                max_size=2,
            ),
        },
    ),
    max_size=3,
)  # fmt: skip
NAMES = (
    "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
    "seed", "stop", "stream", "stream_options", "n", "logprobs", "top_logprobs", "logit_bias",
    "response_format", "tools", "tool_choice", "echo", "suffix", "best_of", "frequency_penalty",
    "presence_penalty", "repeat_penalty", "chat_template_kwargs", "enable_thinking",
    "dry_multiplier", "dry_sequence_breakers", "repeat_last_n", "min_tokens", "ignore_eos",
    "system", "thinking", "stop_sequences", "input", "instructions", "n_predict", "content",
    "options", "format", "keep_alive", "raw", "input_prefix", "input_suffix", "n_probs", "tokens",
)  # fmt: skip
RIGHT = {"max_tokens": 5, "n": 2, "stream": True, "temperature": 0.5, "top_k": 4, "seed": 3,
         "stop": ["a"], "logprobs": True, "logit_bias": {"70": -3}}  # fmt: skip
FIELDS = st.dictionaries(st.sampled_from(NAMES), ANY, max_size=2)
PROMPTS = st.text(max_size=20) | st.lists(st.integers(-2, 700), max_size=5) | ANY


@st.composite
def bodies(draw):
    body = {"messages": [{"role": "user", "content": draw(st.text(max_size=9))}], "prompt": "a"}
    if draw(st.booleans()):
        body = {"messages": draw(MESSAGES | ANY), "prompt": draw(PROMPTS)}
    body["input"] = draw(
        st.just("hi")
        | st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(
                        ["message", "function_call", "function_call_output", "reasoning", "x"]
                    )
                },
                optional={
                    "role": st.just("user"),
                    "content": PROMPTS,
                    "output": PROMPTS,
                    "name": ANY,
                    "call_id": ANY,
                    "arguments": st.sampled_from(["{}", "["]),
                },
            ),
            max_size=3,
        )
        | ANY
    )
    body |= {name: RIGHT[name] for name in draw(st.sets(st.sampled_from(sorted(RIGHT))))}
    return body | draw(FIELDS)


PATHS = (
    "/v1/chat/completions", "/v1/completions", "/completion", "/infill", "/tokenize",
    "/detokenize", "/apply-template", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/api/chat", "/api/generate", "/api/show", "/v1/embeddings", "/api/embed",
)  # fmt: skip


async def ask(path, data):
    client = Client(n_ctx=128)
    async with asyncio.timeout(60):
        reply = await client(path, data)
    assert reply.status < 500, (reply.status, reply.body)
    if reply.headers["content-type"].startswith("text/event-stream"):
        assert not any("server_error" in str(event) for event in reply.events)
    elif reply.headers["content-type"] == "application/json":
        json.loads(reply.body)
    assert not client.backend.busy
    assert client.front.active == 0


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150)
@given(body=bodies())
def test_no_object_is_a_failure(path, body):
    asyncio.run(ask(path, json.dumps(body).encode()))


@pytest.mark.parametrize("path", PATHS)
@given(data=st.binary(max_size=100) | ANY.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_a_failure(path, data):
    asyncio.run(ask(path, data))
