"""Engines that end during streams, broken client connections, and signals."""

import asyncio
import json
import random
import re
import select
import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests.limits import HANG_SECONDS, eventually
from tests.serve.live import serving
from tests.serve.test_clients import client_of

PROMPTS = [f"This is prompt {i}" for i in range(8)]


def chat_of(prompt):
    return {"messages": [{"role": "user", "content": prompt}]}


def last_choice(event):
    return event["choices"][0] if event.get("choices") else {"delta": {}, "text": ""}


# For each interface: its path, the body for (prompt, length, seed), and the text of an event.
INTERFACES = [
    ("/v1/chat/completions",
     lambda prompt, n, seed: chat_of(prompt) | {"max_tokens": n, "seed": seed},
     lambda event: last_choice(event)["delta"].get("content", "")),
    ("/v1/completions",
     lambda prompt, n, seed: {"prompt": prompt, "max_tokens": n, "seed": seed},
     lambda event: last_choice(event)["text"]),
    ("/completion",
     lambda prompt, n, seed: {"prompt": prompt, "n_predict": n, "seed": seed},
     lambda event: event["content"]),
    ("/v1/messages",
     lambda prompt, n, seed: chat_of(prompt) | {"max_tokens": n, "seed": seed},
     lambda event: event.get("delta", {}).get("text", "")),
    ("/v1/responses",
     lambda prompt, n, seed: {"input": prompt, "max_output_tokens": n, "seed": seed},
     lambda event: event["delta"] if event["type"] == "response.output_text.delta" else ""),
    ("/api/chat",
     lambda prompt, n, seed: chat_of(prompt) | {"options": {"num_predict": n, "seed": seed}},
     lambda event: event["message"]["content"]),
]  # fmt: skip


async def streams(server, length, count, heard):
    """Return *count* completions, streamed at once, with the interfaces in rotation.

    Each piece is also appended to the list *heard*.
    """

    async def one(client, number, prompt):
        path, body_of, text_of = INTERFACES[number % len(INTERFACES)]
        text = ""
        body = body_of(prompt, length, number) | {"stream": True}
        async with client.stream("POST", server.url + path, json=body) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                data = line.removeprefix("data: ")
                if data.startswith("{"):
                    event = json.loads(data)
                    assert not event.get("error"), event
                    piece = text_of(event)
                    text += piece
                    heard.extend([piece] if piece else [])
        return text

    async with httpx.AsyncClient(timeout=HANG_SECONDS) as client:
        found = (one(client, i, prompt) for i, prompt in enumerate(PROMPTS[:count]))
        return await asyncio.gather(*found)


async def killing(server, seed, maximum, heard):
    chance = random.Random(seed)
    for _ in range(maximum):
        before = len(heard)
        # streams make progress between two engine failures
        while len(heard) < before + len(PROMPTS):
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.uniform(0.0, 0.05))
        server.kill_engine()


@pytest.mark.parametrize(
    ("engine", "kills", "count", "length", "options"),
    [
        ("tests.serve.fake_engine", 20, 8, 150, {"step_seconds": 0.01, "sequences": 8}),
        ("npurt.serve.engine", 3, 6, 100, {}),
    ],
    ids=["fake", "tiny"],
)
def test_streams_go_on_with_the_same_text_when_engines_are_killed(
    tmp_path, engine, kills, count, length, options
):
    with serving(tmp_path, engine=engine, n_ctx=512, **options) as server:

        async def run():
            quiet, heard = await streams(server, length, count, []), []
            killer = asyncio.create_task(killing(server, 1, kills, heard))
            killed = await streams(server, length, count, heard)
            killer.cancel()
            return quiet, killed

        quiet, killed = asyncio.run(run())
        assert "engine is lost" in server.log.read_text()
        assert killed == quiet
        assert len(set(quiet)) == count


def connected(server):
    host, port = re.fullmatch(r"http://(.*):(\d+)", server.url).groups()
    return socket.create_connection((host, int(port)), timeout=HANG_SECONDS)


def answer(sock):
    """Return all bytes received until the connection ends."""
    data = b""
    while part := sock.recv(1 << 16):
        data += part
    return data


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 16) + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * (1 << 14) + b"\r\n",
        b"GET /" + b"x" * (1 << 16) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 50\r\n\r\n{}",
        HEAD + b"Content-Length: -5\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: xchunked\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["header", "headers", "line", "no-host", "two-hosts", "tls", "two-lengths", "negative",
         "encoding", "chunk"],
)  # fmt: skip
def test_requests_that_are_none_are_refused(live, sent):
    with connected(live) as sock:
        try:
            sock.sendall(sent)
            reply = answer(sock)
        except ConnectionError:
            reply = b""  # the server closed the connection before it read the request
    assert reply == b"" or re.match(rb"HTTP/1.1 (4\d\d|501) ", reply), reply[:200]
    assert live.health() == 200


def test_a_length_and_chunks_together_smuggle_nothing(live):
    inner = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunked = HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(live) as sock:
        sock.sendall(chunked + b"0\r\n\r\n" + inner)
        reply = answer(sock)
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1 ") == 1


def test_a_client_that_closes_one_side_or_resets_leaves_nothing(live):
    body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 400}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    for end in (
        lambda sock: sock.shutdown(socket.SHUT_WR),
        lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
        lambda sock: None,
    ):
        with connected(live) as sock:
            sock.sendall(request)
            assert sock.recv(10)
            end(sock)
    with connected(live) as sock:
        sock.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")  # the rest of the body is never sent
    assert live.settles("llamacpp:requests_processing", 0)


def test_headers_that_do_not_arrive_end_the_connection(tmp_path):
    with serving(tmp_path, head_seconds=0.3) as server, connected(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert answer(sock) == b""
        assert server.health() == 200


def test_headers_of_a_later_request_have_to_arrive_as_well(tmp_path):
    with serving(tmp_path, head_seconds=0.3) as server, connected(server) as sock:
        sock.settimeout(5)  # seconds; without it, a connection that stays open would block for ever
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reply = b""
        while not reply.endswith(b"}"):
            reply += sock.recv(1 << 12)
        assert reply.startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        assert answer(sock) == b""


def test_a_client_that_takes_nothing_loses_its_connection(tmp_path):
    """Its answer is larger than all socket buffers, so the write would block for ever."""
    body = json.dumps({"content": "a b " * 100_000, "with_pieces": True}).encode()
    with serving(tmp_path, send_seconds=0.3) as server:
        folder = Path(f"/proc/{server.process.pid}/fd")
        count = len(list(folder.iterdir()))
        with connected(server) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n")
            sock.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            assert eventually(lambda: select.select([sock], [], [], 0)[0])  # the response has begun
            assert eventually(lambda: len(list(folder.iterdir())) <= count, 20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_finish(tmp_path, number):
    with serving(tmp_path, step_seconds=0.01) as server:
        with client_of(server) as client:
            stream = client.completions.create(
                model="x", prompt="a", max_tokens=60, seed=1, stream=True
            )
            pieces = [next(stream).choices[0].text]
            server.process.send_signal(number)
            assert eventually(lambda: server.health() == 503)
            pieces += [chunk.choices[0] for chunk in stream]
        assert pieces[-1].finish_reason == "length"
        assert server.process.wait(HANG_SECONDS) == 128 + number
    assert server.engine() is None


def test_a_model_that_cannot_be_opened_ends_the_server(tmp_path):
    with serving(tmp_path, wait=False, broken=True) as server:
        assert server.process.wait(HANG_SECONDS) == 1
    assert "is broken" in server.log.read_text()
