"""Few file descriptors and many connections: the server serves, and restarts its engine."""

import asyncio
import contextlib
import errno
import json
import logging
import re
import socket
from pathlib import Path

import pytest

from npurt.errors import SettingError
from npurt.serve.http import connections
from npurt.serve.http.connections import REPEATS, Connections, FewRepeats
from tests.limits import eventually
from tests.serve.live import serving
from tests.serve.test_engine import PROMPTS, alone, running, submit, texts_of
from tests.serve.test_faults import answer, connected

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"


def request(**fields):
    body = json.dumps({"prompt": "a", "max_tokens": 3, "seed": 1} | fields).encode()
    return POST % (len(body), body)


def complete(server):
    with connected(server) as sock:
        sock.sendall(request())
        return sock.recv(1 << 16)


@pytest.mark.parametrize(("files", "count"), [([64, 64], 200), ([1024, 1024], 1100)])
def test_idle_connections_take_no_descriptor_that_others_need(tmp_path, files, count):
    with serving(tmp_path, files=files) as server, contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(connected(server))
        assert complete(server).startswith(b"HTTP/1.1 200 ")
        pid = server.engine()
        server.kill_engine()
        assert eventually(lambda: server.engine() not in (None, pid))
        assert complete(server).startswith(b"HTTP/1.1 200 ")
        assert server.process.poll() is None
        log = server.log.read_text()
    assert "connections: idle ones are closed" in log
    assert len(log) < 4000


def test_the_soft_limit_is_raised(tmp_path):
    with serving(tmp_path, files=[64, 512]) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(r"Max open files +512 +512", limits)


class Connection:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


def test_the_longest_idle_connection_is_closed_first():
    state = Connections(2)
    first, second, third, fourth = (Connection() for _ in range(4))
    for each in (first, second):
        state.connections.add(each)
        assert state.admit(each)
    state.busy(first)
    state.idle(first)
    state.connections.add(third)
    assert state.admit(third)
    assert (first.closed, second.closed) == (0, 1)
    state.connections.discard(second)
    state.busy(first)
    state.busy(third)
    state.connections.add(fourth)
    assert not state.admit(fourth)
    state.lost(first)


def test_an_engine_is_started_again_when_descriptors_are_free(monkeypatch):
    async def run():
        async with running() as engine:
            pair, left = socket.socketpair, [errno.EMFILE, errno.ENFILE, errno.EMFILE]

            def full():
                if left:
                    raise OSError(left.pop(), "Too many open files")
                return pair()

            monkeypatch.setattr(socket, "socketpair", full)
            asked = submit(PROMPTS[0])
            engine._kill()
            (text,) = await texts_of(engine, [asked])
            assert text.tokens == alone(asked)
            assert not left

    asyncio.run(run())


def test_a_repeated_message_is_logged_a_few_times(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    few, made = FewRepeats(), logging.makeLogRecord

    def logged(message, count, level=logging.ERROR):
        records = (made({"msg": message, "args": (i,), "levelno": level}) for i in range(count))
        return [each.getMessage() for each in records if few.filter(each)]

    assert logged("lost: %d", 50)[0] == "lost: 0"
    assert logged("lost: %d", 50) == []
    assert logged("other: %d", 2) == ["other: 0", "other: 1"]
    assert len(logged("request %d", 50, logging.INFO)) == 50
    now[0] += 11
    found = logged("lost: %d", 50)
    assert len(found) == REPEATS
    assert "repeats are not logged" in found[-1]


def test_the_limits_of_the_system_are_used(monkeypatch):
    monkeypatch.setattr(connections.resource, "getrlimit", lambda kind: (50, 50))
    with pytest.raises(SettingError, match="the limit of open files is 50"):
        connections.most_connections(1)


# --- Half-closed connections ----------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"max_tokens": 30}])
def test_a_client_that_closes_its_side_gets_its_answer(tmp_path_factory, fields):
    with serving(tmp_path_factory.mktemp("half"), step_seconds=0.1) as server:
        with connected(server) as sock:
            sock.sendall(request(**fields))
            sock.shutdown(socket.SHUT_WR)
            reply = answer(sock)
        final = re.sub(rb"^(HTTP/1.1 102 \r\n\r\n)+", b"", reply)
        assert final.startswith(b"HTTP/1.1 200 ")
        assert b'"finish_reason":"length"' in final
        with connected(server) as sock:  # two requests at once
            sock.sendall(request(**fields) + request(**fields))
            sock.shutdown(socket.SHUT_WR)
            assert answer(sock).count(b"HTTP/1.1 200 ") == 2


def test_a_client_that_closes_the_connection_ends_its_request(tmp_path):
    with serving(tmp_path, step_seconds=0.2) as server:
        with connected(server) as sock:
            sock.sendall(request(max_tokens=240))
            assert server.settles("llamacpp:requests_processing", 1)
        assert server.settles("llamacpp:requests_processing", 0)
