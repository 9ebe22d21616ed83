"""A request that is refused has the status of its error, also if it asks for a stream."""

import pytest

from tests.serve.client import SAY_HI, TEMPLATE, Client, asking, served

BAD = {"type": "object", "properties": {"tz": {"type": "string", "pattern": "^(?=U).*$"}}}
NESTED = [{"type": "function", "function": {"name": "clock", "parameters": BAD}}]
STRICT = [{"type": "function", "function": {**NESTED[0]["function"], "strict": True}}]
FLAT = [{"type": "function", "name": "clock", "parameters": BAD}]
REQUESTS = [
    ("/v1/chat/completions", SAY_HI | {"tools": NESTED, "tool_choice": "required"}),
    ("/v1/chat/completions", SAY_HI | {
        "tools": NESTED, "tool_choice": {"type": "function", "function": {"name": "clock"}}}),
    ("/v1/chat/completions", SAY_HI | {"tools": STRICT}),
    ("/v1/responses", {"input": "hi", "tools": FLAT, "tool_choice": "required"}),
    ("/v1/messages", SAY_HI | {"max_tokens": 5, "tools": [{"name": "clock", "input_schema": BAD}],
                               "tool_choice": {"type": "any"}}),
    ("/api/chat", SAY_HI | {"tools": STRICT}),
]  # fmt: skip
SEED = {"seed": 666}  # the fake engine refuses it
STREAMS = [
    ("/v1/chat/completions", SAY_HI | SEED),
    ("/v1/completions", {"prompt": "hi"} | SEED),
    ("/v1/responses", {"input": "hi"} | SEED),
    ("/v1/messages", SAY_HI | {"max_tokens": 5} | SEED),
    ("/api/chat", SAY_HI | {"options": SEED}),
    ("/api/generate", {"prompt": "hi", "options": SEED}),
    ("/completion", {"prompt": "hi"} | SEED),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), REQUESTS)
@asking
async def test_a_schema_of_a_tool_that_cannot_be_followed_is_refused_by_name(path, body, stream):
    client = Client("x", model=served("llama3", TEMPLATE + "{# <tool_call> #}"), n_ctx=4096)
    reply = await client(path, body | {"stream": stream})

    assert reply.status == 400
    assert "the tool clock" in reply.body.decode()
    assert "#/properties/tz/pattern" in reply.body.decode()
    assert "json" not in reply.body.decode().replace("JSON schema", "")
    assert "Lark" not in reply.body.decode()
    assert not client.backend.submitted


@pytest.mark.parametrize(("path", "body"), STREAMS)
@asking
async def test_a_stream_that_the_engine_refuses_has_the_status_of_the_error(path, body):
    reply = await Client("x")(path, body | {"stream": True})

    assert reply.status == 400
    assert "666" in reply.body.decode()
