"""Rules for all requests: paths, methods, bodies, keys, hosts."""

import asyncio
import gzip
import socket
import sys

import pytest

from npurt.errors import SettingError
from npurt.serve.http import endpoint, limits
from npurt.serve.http.address import Address
from npurt.serve.http.auth import read_keys
from tests.serve.client import SAY_HI, Client, asking

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "path", [CHAT, f"{CHAT}/", "/chat/completions", "//v1//chat/completions//"]
)
@asking
async def test_a_path_may_lack_v1_and_end_with_a_slash(path):
    assert (await Client("x")(path, SAY_HI)).status == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/chat/completions/api/tags", "POST", 404),
        ("/nothing", "GET", 404),
        (CHAT, "GET", 405),
        ("/v1/health", "POST", 405),
        ("/v1/models", "DELETE", 405),
    ],
)
@asking
async def test_an_unknown_path_is_an_error_in_json(path, method, status):
    reply = await Client("x")(path, method=method)

    assert reply.status == status
    assert reply.json["error"].keys() == {"message", "type", "param", "code"}
    assert reply.json["error"]["message"].endswith("GET /openapi.json lists the paths")


@asking
async def test_head_and_options_are_answered():
    client = Client("x")
    head, get = await client("/v1/models", method="HEAD"), await client("/v1/models")
    options = await client(CHAT, method="OPTIONS")

    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.body))
    assert options.status == 204
    assert "POST" in options.headers["allow"]


SAID = b'{"messages":[{"role":"user","content":"a"}],'
BAD = [
    (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b'"a"', 400), (b"\xff\xfe{}", 400),
    (b'{"messages": NaN}', 400), (b'{"n": Infinity}', 400), (SAID + b'"x":1e400}', 400),
    (SAID + b'"x":[{"y":-1e999}]}', 400), (b"[" * 100_000, 413), (b"[" * 60_000, 400),
    (b'{"a":' * 300 + b"1" + b"}" * 300, 400), (b'{"n": ' + b"9" * 5000 + b"}", 400),
    (b'{"messages":[{"role":"user","content":"hi"}],"x":1e999}', 400), (b"[-1e999]", 400),
    (b"x" * (limits.BODY + 1), 413), (b'{"messages":[],"messages":5}', 400),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), BAD, ids=lambda v: str(v)[:24])
@asking
async def test_a_body_that_is_none_is_refused(body, status):
    reply = await Client("x")(CHAT, body)
    assert reply.status == status
    assert reply.json["error"]["message"]


@asking
async def test_a_body_may_be_as_large_as_the_limit():
    body = b'{"messages":[{"role":"user","content":"hi"}],"x":"'
    body += b"x" * (limits.BODY - len(body) - 2) + b'"}'
    assert len(body) == limits.BODY
    assert (await Client("x")(CHAT, body)).status == 200


@asking
async def test_a_length_that_is_too_large_is_refused_before_the_body_arrives():
    reply = await Client("x")(CHAT, b"{}", headers={"content-length": str(limits.BODY + 1)})
    assert reply.status == 413


@asking
async def test_a_compressed_body_is_refused():
    body = gzip.compress(b"[" * (1 << 20))
    reply = await Client("x")(CHAT, body, headers={"content-encoding": "gzip"})
    assert reply.status == 415


@asking
async def test_too_many_messages_are_refused():
    message = SAY_HI["messages"][0]
    client = Client("x", n_ctx=30000)
    for count, status in ((limits.MESSAGES, 200), (limits.MESSAGES + 1, 400)):
        assert (await client(CHAT, {"messages": [message] * count})).status == status


@asking
async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.01)

    async def never():
        await asyncio.Event().wait()

    with pytest.raises(limits.HttpError) as caught:
        await limits.body({"headers": []}, never)
    assert caught.value.status == 408


# --- Keys -------------------------------------------------------------------------------------

KEYS = {"guard": {"keys": ["secret", "other"]}}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer other"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "secret"}, 401),
        ({"x-api-key": "secre"}, 401),
        ({"x-api-key": "sécret"}, 401),
    ],
)
@asking
async def test_a_key_is_needed_where_there_are_keys(headers, status):
    reply = await Client("x", **KEYS)(CHAT, SAY_HI, headers=headers)

    assert reply.status == status
    if status == 401:
        assert reply.json["error"]["code"] == "invalid_api_key"


@asking
async def test_health_needs_no_key_and_all_else_does():
    client = Client("x", **KEYS)
    assert (await client("/health")).status == 200
    for path in ("/v1/models", "/metrics", "/nothing"):
        assert (await client(path)).status == 401


@asking
async def test_prompts_of_different_keys_share_no_cache():
    client = Client("x", **KEYS)
    for key in ("secret", "other", "secret"):
        await client(CHAT, SAY_HI, headers={"x-api-key": key})
    salts = [submit.salt for submit in client.backend.submitted]

    assert salts[0] == salts[2] != salts[1]
    assert all(salts)
    assert not any("secret" in salt for salt in salts)


def test_keys_come_from_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# of users\n secret \n\nother\n")
    assert read_keys(path) == ["secret", "other"]


@pytest.mark.parametrize("content", [None, b"", b"# none\n", b"\xff\xfe"])
def test_a_file_without_keys_is_refused(tmp_path, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError):
        read_keys(path)


# --- Hosts and origins ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8080", 200), ("LocalHost.", 200), ("127.0.0.1:80", 200),
        ("[::1]:8080", 200), ("192.168.1.5", 200), ("board.lan", 200), ("board.lan:99", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("", 403), ("[::1", 200), ("2130706433", 403),
    ],
)  # fmt: skip
@asking
async def test_a_name_that_is_not_this_servers_is_refused(host, status):
    client = Client("x", guard={"hosts": ["board.lan"]})
    assert (await client("/health", headers={"host": host})).status == status


@pytest.mark.parametrize(
    ("origin", "status", "allowed"),
    [
        (None, 200, None),
        ("http://localhost", 200, None),
        ("https://ui.example", 200, "https://ui.example"),
        ("https://evil.example", 403, None),
        ("null", 403, None),
    ],
)
@asking
async def test_web_pages_of_others_are_refused(origin, status, allowed):
    client = Client("x", guard={"origins": ["https://ui.example/"]})
    headers = {} if origin is None else {"origin": origin}
    reply = await client(CHAT, SAY_HI, headers=headers)
    before = await client(CHAT, method="OPTIONS", headers={
        **headers, "access-control-request-headers": "authorization"})  # fmt: skip

    assert reply.status == status
    assert reply.headers.get("access-control-allow-origin") == allowed
    assert before.headers.get("access-control-allow-headers") == (allowed and "authorization")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "board.lan"])
def test_another_address_needs_keys_or_the_word_insecure(host):
    with pytest.raises(SettingError, match="everyone who reaches"):
        Address(host).require_safe()
    Address(host, keys=["k"]).require_safe()
    Address(host, insecure=True).require_safe()
    assert [Address(host, keys=keys).is_open for keys in ((), ("k",))] == [True, False]


def test_an_address_of_another_machine_is_a_clear_error():
    with pytest.raises(SettingError) as caught:
        Address("192.0.2.1", port=0).listen()
    assert caught.value.what.endswith("192.0.2.1 port 0: Cannot assign requested address")
    assert caught.value.remedy == "give --host an address of this machine"


def test_an_address_in_use_is_a_clear_error():
    with Address(port=0).listen() as sock, pytest.raises(SettingError) as caught:
        Address(port=sock.getsockname()[1]).listen()
    assert "cannot listen on" in caught.value.what
    assert caught.value.what.endswith(": Address already in use")
    assert "choose another --port" in caught.value.remedy
    with pytest.raises(SettingError, match="port is 99999"):
        Address(port=99999).listen()


def test_small_packets_do_not_wait_for_each_other():
    with (
        Address(port=0).listen() as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


SHAPES = {
    "/v1/chat/completions": {"message", "type", "param", "code"},
    "/v1/responses": {"message", "type", "param", "code"},
    "/completion": {"message", "type", "code"},
    "/tokenize": {"message", "type", "code"},
    "/props": {"message", "type", "code"},
    "/health": {"message", "type", "code"},
}


@pytest.mark.parametrize("path", [*SHAPES, "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("stream", [False, True])
@asking
async def test_a_mistake_of_npurt_is_an_error_in_the_form_of_the_interface(path, stream, caplog):
    """The error shows no internals, and it ends a stream."""
    client = Client("x")

    def broken(*_):
        raise KeyError("secret")

    client.front.begin = client.front.ready = broken
    body = SAY_HI | {"input": "a", "prompt": "a", "content": "a", "stream": stream}
    if path == "/tokenize":
        client.front.model = None
    reply = await client(path, None if path in ("/props", "/health") else body)
    assert reply.status == 500
    assert b"secret" not in reply.body
    error = reply.json["error"]
    if path in SHAPES:
        assert error.keys() == SHAPES[path]
        assert error["type"] == "server_error"
    elif path == "/v1/messages":
        assert (reply.json["type"], error["type"]) == ("error", "api_error")
    else:
        assert isinstance(error, str)


@pytest.mark.parametrize("path", ["/completion", "/infill", "/detokenize", "/apply-template"])
@asking
async def test_errors_of_llama_cpps_paths_have_a_number_as_code(path):
    error = (await Client("x")(path, b"[]")).json["error"]
    assert error.keys() == {"message", "type", "code"}
    assert (error["code"], error["type"]) == (400, "invalid_request_error")


@asking
async def test_a_prompt_that_is_too_long_is_llama_cpps_own_error():
    client = Client("x", n_ctx=8)
    error = (await client("/completion", {"prompt": "Hello " * 30})).json["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 8)
    assert error["n_prompt_tokens"] > 8


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/chat/completions", "error"), ("/v1/completions", "error"),
        ("/completion", "error"), ("/v1/messages", "error"), ("/v1/responses", "response.failed"),
        ("/api/chat", "error"), ("/api/generate", "error"),
    ],
)  # fmt: skip
@asking
async def test_a_mistake_within_a_stream_ends_it_with_an_error(path, last, caplog):
    client = Client("Hello World", n_ctx=1 << 20)
    decode = client.front.model.tokenizer.stream

    class Stream:
        def __init__(self):
            self.stream, self.left = decode(special=False, continued=True), 2

        def push(self, token):
            self.left -= 1
            if not self.left:
                raise KeyError("secret")
            return self.stream.push(token)

    begin = client.front.begin

    def begun(*args):
        texts = begin(*args)
        for choice in texts.choices:
            choice._stream = Stream()
        return texts

    client.front.begin = begun
    reply = await client(path, SAY_HI | {"input": "a", "prompt": "a", "stream": True})
    assert reply.status == 200
    assert b"secret" not in reply.body
    assert not client.backend.busy
    if path.startswith("/api/"):
        assert reply.lines[-1].keys() == {last}
    elif path in ("/v1/messages", "/v1/responses"):
        assert reply.events[-1][0] == last
    else:
        assert reply.events[-1].keys() == {last}


@pytest.mark.parametrize("key", ["sk-abc\u00e0", "\u00a0sk\u0085", "sk-\u2028a\x1c"])
@asking
async def test_a_key_may_contain_any_bytes(tmp_path, key):
    """In UTF-8, these keys begin or end with bytes that are blanks in latin-1."""
    file = tmp_path / "keys"
    file.write_bytes(f"# keys\n  {key}\t\r\nother\n".encode())
    assert read_keys(file) == [key, "other"]
    client = Client("x", guard={"keys": read_keys(file)})
    sent = key.encode().decode("latin-1")
    for headers in ({"authorization": f"Bearer  {sent}"}, {"x-api-key": sent}):
        assert (await client("/v1/models", headers=headers)).status == 200
    reply = await client("/v1/models", headers={"authorization": f"Bearer {sent[:-1]}"})
    assert reply.status == 401


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost", 200), ("https://localhost", 200), ("ftp://localhost", 403),
     ("evil://localhost", 403), ("chrome-extension://localhost", 403), ("://localhost", 403),
     ("localhost", 403), ("null", 403)],
)  # fmt: skip
@asking
async def test_only_web_pages_are_of_the_servers_own_origin(origin, status):
    reply = await Client("x")("/v1/models", headers={"origin": origin})
    assert reply.status == status


@asking
async def test_a_package_that_cannot_be_loaded_is_named(monkeypatch):
    """For example after an upgrade of packages under a running server."""
    client = Client("x")
    monkeypatch.setitem(sys.modules, "npurt.serve.status.prometheus", None)
    reply = await client("/metrics")
    assert reply.status == 500
    assert "npurt.serve.status.prometheus cannot be loaded" in reply.json["error"]["message"]
    assert "start the server again" in reply.json["error"]["message"]


@asking
async def test_a_refused_thread_is_503(monkeypatch):
    def refused(work):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(endpoint.THREADS._large, "submit", refused)
    body = {"content": "a " * limits.LARGE}
    reply = await Client("x")("/tokenize", body)
    assert reply.status == 503
    assert "refuses a thread" in reply.json["error"]["message"]
