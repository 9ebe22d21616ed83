"""Test the line that the server logs about each request."""

import logging

import pytest

from npurt.cli import parser
from tests.serve.client import SAY_HI, Client, asking

CHAT = "/v1/chat/completions"


@pytest.fixture
def lines(caplog):
    """Return a function that returns the lines logged since its last call."""
    caplog.set_level(logging.INFO, "npurt.serve")

    def taken():
        found = [r.getMessage() for r in caplog.records if r.name == "npurt.serve.requests"]
        caplog.clear()
        return found

    return taken


def without_time(lines):
    return [line.replace(line.partition(", ")[2].partition(" s")[0], "T", 1) for line in lines]


def test_a_request_has_a_line_with_its_tokens(lines):
    @asking
    async def ask():
        client = Client("Hello")
        usage = (await client(CHAT, SAY_HI)).json["usage"]
        counts = (
            f"{usage['prompt_tokens']} tokens of prompt, {usage['completion_tokens']} generated"
        )
        assert without_time(lines()) == [f"POST {CHAT} 200, T s; {counts}"]
        await client(CHAT, SAY_HI | {"stream": True})
        assert without_time(lines()) == [f"POST {CHAT} 200, T s; {counts}"]
        await client("/tokenize", {"content": "a"})
        assert without_time(lines()) == ["POST /tokenize 200, T s"]

    ask()


def test_a_refused_request_has_a_line(lines):
    @asking
    async def ask():
        client = Client("Hello", guard={"keys": ["right"]})
        key = {"authorization": "Bearer right"}
        await client(CHAT, SAY_HI)
        await client(CHAT, {"messages": 1}, headers=key)
        await client("/no/\n\x1b[31mthing", headers=key)
        await client(CHAT, SAY_HI, headers={"host": "elsewhere.example"})
        assert without_time(lines()) == [
            f"POST {CHAT} 401, T s",
            f"POST {CHAT} 400, T s",
            "GET /no/??[31mthing 404, T s",
            f"POST {CHAT} 403, T s",
        ]

    ask()


def test_answers_that_programs_repeat_are_logged_at_debug_only(lines, caplog):
    @asking
    async def ask():
        client = Client("Hello")
        for path in ("/health", "/metrics", "/v1/models", "/page/state"):
            await client(path)
        client.engine.alive = False
        assert (await client("/health")).status == 503
        client.engine.alive = True
        assert lines() == []
        caplog.set_level(logging.DEBUG, "npurt.serve")
        await client("/health")
        assert without_time(lines()) == ["GET /health 200, T s"]
        caplog.set_level(logging.WARNING, "npurt.serve")
        await client(CHAT, SAY_HI)
        assert lines() == []

    ask()


def test_a_client_that_disconnects_has_a_line(lines):
    import asyncio

    @asking
    async def ask():
        client, gone = Client(), asyncio.Event()
        client.engine.go.clear()
        asked = asyncio.create_task(client(CHAT, SAY_HI, gone=gone))
        while not client.backend.submitted:
            await asyncio.sleep(0)
        gone.set()
        await asked
        (line,) = without_time(lines())
        assert line.startswith(f"POST {CHAT} 499, T s; ")

    ask()


def test_the_levels_are_flags():
    serve = parser(["serve"]).parse_args
    assert serve(["serve", "-m", "x"]).log_level == "info"
    assert serve(["serve", "-m", "x", "-q"]).quiet
    with pytest.raises(SystemExit):
        serve(["serve", "-m", "x", "--log-level", "loud"])
