"""`npurt chat --url`: a model behind a server, which may be hostile."""

import contextlib
import json
import re
import socket
import threading

import pytest

from npurt.cli import main
from npurt.cli.verbs.remote import RemoteError, RemoteModel, read_key
from npurt.errors import ContextFull, SettingError
from tests.limits import HANG_SECONDS, interrupt
from tests.serve.client import served
from tests.serve.live import serving

KEY = "sk-very-secret"
TEXT = "It is an accelerator."


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """Yield npurt's own server with the fake engine, which generates `TEXT` with seed 0."""
    texts = [served().tokenizer.encode(TEXT, add_bos=False)]
    folder = tmp_path_factory.mktemp("live")
    with serving(folder, n_ctx=512, texts=texts) as server:
        yield server


def request(connection):
    """Read and return a whole request."""
    data = connection.recv(1 << 20)
    length = re.search(rb"Content-Length: (\d+)", data)
    while length and len(data.partition(b"\r\n\r\n")[2]) < int(length[1]):
        data += connection.recv(1 << 20)
    return data


@contextlib.contextmanager
def hostile(*answers, hold=False):
    """Yield a server's URL and its list of requests; it sends one of *answers* per connection."""
    got = []
    over = threading.Event()

    def serve():
        for answer in answers:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    got.append(request(connection))
                    connection.sendall(answer)
                    if hold:
                        over.wait(HANG_SECONDS)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", got
        finally:
            over.set()


def http(body, status="200 OK", kind="text/event-stream", extra=""):
    data = body if isinstance(body, bytes) else body.encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}\r\n".encode() + data


def event(text, **choice):
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}, **choice}]})}\n\n"


def said(url, **settings):
    remote = RemoteModel(url, "m", KEY, settings.pop("seconds", 30.0))
    return "".join(remote.chat([{"role": "user", "content": "hi"}], stream=True, **settings))


# --- npurt's own server ---------------------------------------------------------------------------


def test_a_chat_with_a_server(live, npurt):
    result = npurt("chat", "--url", f"{live.url}/v1", "-s", 0, "-sys", "Be brief.",
                   stdin=b"Hello\n/regen\n/report\n/quit\n")  # fmt: skip
    assert result.code == 0
    assert result.out == f"{TEXT}\n{TEXT}\ntiny at {live.url}/v1\n"
    assert result.err.startswith(f"tiny at {live.url}/v1\n")
    count = len(served().tokenizer.encode(TEXT, add_bos=False))
    assert f"[{count} tokens, " in result.err


def test_a_url_without_a_path_means_v1(live):
    assert said(live.url, seed=0) == TEXT


def test_settings_that_are_left_alone_are_the_servers(monkeypatch, capsys):
    answer = http(event("ok", finish_reason="stop") + "data: [DONE]\n\n")
    with hostile(answer, answer) as (url, got):
        lines = iter(["Hello", "/set temp 0.25", "/set top-k 7", "/regen", "/quit"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines))
        assert main(["chat", "--url", url, "-m", "m", "-n", "5"]) == 0
    first, second = (json.loads(each.partition(b"\r\n\r\n")[2]) for each in got)
    assert first == {"model": "m", "stream": True, "stream_options": {"include_usage": True},
                     "messages": [{"role": "user", "content": "Hello"}],
                     "max_tokens": 5}  # fmt: skip
    assert second == first | {"temperature": 0.25, "top_k": 7}
    assert capsys.readouterr().out == "ok\nok\n"


def test_a_conversation_too_long_for_the_server_goes_on(live, npurt):
    """The server's context has 512 positions."""
    lines = "".join(f"{i} {'word ' * 40}\n" for i in range(8))
    result = npurt("chat", "--url", f"{live.url}/v1", "-s", 0, "-sys", "Be brief.",
                   stdin=lines.encode())  # fmt: skip

    assert result.code == 0
    assert result.out == f"{TEXT}\n" * 8
    assert result.err.count("its oldest turns are left out") == 1
    assert "remedy" not in result.err


def test_what_the_server_refuses_leaves_the_conversation(live, npurt):
    long = b"word " * 600
    result = npurt("chat", "--url", live.url, "-s", 0, stdin=b"Hello\n" + long + b"\nHello\n")
    assert result.code == 1
    assert result.out == f"{TEXT}\n{TEXT}\n"
    assert "exceeds the available context size" in result.err
    assert "remedy: /clear" in result.err


def test_a_schema_goes_to_the_server(monkeypatch):
    answer = http(event("{}", finish_reason="stop"))
    with hostile(answer) as (url, got):
        lines = iter(["Hello", "/quit"])
        monkeypatch.setattr("builtins.input", lambda _: next(lines))
        assert main(["chat", "--url", url, "-m", "m", "-j", '{"type": "object"}']) == 0
    sent = json.loads(got[0].partition(b"\r\n\r\n")[2])
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_thoughts_are_shown_apart(live):
    thought = 'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n'
    with hostile(http(thought * 2 + event("yes", finish_reason="stop"))) as (url, _):
        assert said(url) == "<think>\nhmhm\n</think>\n\nyes"


def test_ctrl_c_stops_the_answer_and_closes_the_connection():
    heard = []
    with hostile(http(event("one")), hold=True) as (url, _):
        remote = RemoteModel(url, "m")

        def work():
            for piece in remote.chat([], stream=True):
                heard.append(piece)

        interrupt(work, lambda: heard)
    assert heard == ["one"]
    assert remote.timing.generated_tokens == 1


def test_several_models_are_named():
    listed = json.dumps({"data": [{"id": "a"}, {"id": "b\x1b[2J"}]})
    with hostile(http(listed)) as (url, _), pytest.raises(RemoteError) as error:
        RemoteModel(url)
    assert "a, b [2J" in error.value.what
    assert "--model" in error.value.remedy


# --- Keys -----------------------------------------------------------------------------------------


def test_the_key_is_sent_and_never_shown(tmp_path, capsys):
    file = tmp_path / "key"
    file.write_text(f"# of my server\n{KEY}\n")
    body = json.dumps({"error": {"message": f"{KEY} is no key"}})
    refusal = http(body, "401 Unauthorized")
    with hostile(refusal) as (url, got):
        assert main(["chat", "--url", url, "--api-key-file", str(file)]) == 1
    assert f"Authorization: Bearer {KEY}".encode() in got[0]
    err = capsys.readouterr().err
    assert KEY not in err
    assert "[key] is no key" in err
    assert "--api-key-file" in err


@pytest.mark.parametrize("text", ["", "# only\n", "\x00\x01", "k\xe9y"])
def test_a_file_without_a_key_is_refused(tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(SettingError, match="has no key"):
        read_key(file)


def test_redirects_are_refused_and_the_key_stays():
    extra = "Location: http://evil.example/v1\r\nContent-Length: 0\r\n"
    with (
        hostile(http("", "307 Temporary Redirect", extra=extra), http("")) as (url, got),
        pytest.raises(RemoteError, match=r"evil\.example"),
    ):
        said(url)
    assert len(got) == 1


# --- Hostile servers ------------------------------------------------------------------------------

DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (http(event("half")), "ended before the answer"),
        (http(event("half"), extra="Content-Length: 10000\r\n"), "ended before|broke"),
        (http("5\r\nda", extra="Transfer-Encoding: chunked\r\n"), "broke|ended before"),
        (http("zz\r\n", extra="Transfer-Encoding: chunked\r\n"), "broke|ended before"),
        (http("data: {broken\n\n"), "sends an invalid event"),
        (http("data: [1, 2]\n\n"), "sends an invalid event"),
        (http("data: " + "[" * 100_000 + "\n\n"), "sends an invalid event"),
        (http(b"data: \xff\xfe\n\n"), "sends an invalid event"),
        (http("data: " + "x" * (2 << 20)), "more than 1048576 bytes"),
        (http('data: {"error": {"message": "boom\\u001b[31m"}}\n\n'), r"boom\[31m"),
        (http("<html>"), "ended before the answer"),
        (b"SSH-2.0-OpenSSH\r\n", "gives no valid HTTP response"),
        (b"", "gives no valid HTTP response"),
        (http("", extra="X: " + "y" * 100_000 + "\r\n"), "gives no valid HTTP response"),
        (http("", extra="X: y\r\n" * 200), "gives no valid HTTP response"),
        (http("nothing", "500 Oops"), "status 500"),
        (http('{"error": "down"}', "503 No"), "down"),
        (http('{"error": {"message": ["x"]}}', "400 No"), "status 400"),
        (http("[" * 60_000, "400 No"), "status 400"),
    ],
)
def test_broken_answers_are_errors_with_remedies(answer, what):
    with hostile(answer) as (url, _), pytest.raises(RemoteError, match=what) as error:
        said(url)
    assert error.value.remedy
    assert error.value.what.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        'data: {"choices": [7]}\n\ndata: {"choices": {}}\n\ndata: {"choices": null}\n\n',
        'data: {"choices": [{"delta": {"content": ["x"]}}]}\n\n',
        'data: {"choices": [{"delta": null}], "usage": {"completion_tokens": "many"}}\n\n',
        ": a comment\n\nevent: ping\nid: 7\n\n",
    ],
)
def test_what_means_nothing_is_passed_over(body):
    with hostile(http(body + event("ok") + DONE)) as (url, _):
        assert said(url) == "ok"


def test_text_cannot_control_the_terminal():
    with hostile(http(event("a\x1b]0;owned\x07\r\x9b2Jb\tc\n") + DONE)) as (url, _):
        assert said(url) == "a]0;owned2Jb\tc\n"


@pytest.mark.parametrize("answer", [b"", http(""), http(event("half"))])
def test_a_server_that_hangs_is_given_up(answer):
    with (
        hostile(answer, hold=True) as (url, _),
        pytest.raises(RemoteError, match=r"nothing for 0\.2 s"),
    ):
        said(url, seconds=0.2)


def test_a_conversation_that_is_too_long_says_how_to_go_on():
    body = json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}})
    with hostile(http(body, "400 Bad Request")) as (url, _), pytest.raises(ContextFull):
        said(url)


def test_nobody_there(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert main(["chat", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert "start the server; npurt serve prints its URL" in capsys.readouterr().err


# --- Flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://x/v1", "http://", "http://x:y/v1", "http://x:99999", "http://a b/",
     "http://x/\r\nHost: y", "http://me:hunter2@x/v1", "http://[x", ""],
)  # fmt: skip
def test_what_is_no_url_is_refused(url, capsys):
    assert main(["chat", "--url", url]) == 2
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["-c", "64"], ["-dev", "cpu"], ["-t", "1"], ["-md", "lookup"], ["--strict"],
     ["--timeout", "0"], ["--timeout", "inf"], ["--timeout", "nan"], ["--raw"]],
)  # fmt: skip
def test_flags_of_a_model_here_are_refused(flags):
    with pytest.raises(SystemExit, match="2"):
        main(["chat", "--url", "http://127.0.0.1:1/v1", *flags])


def test_without_a_model_and_a_url_it_says_what_is_missing(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["chat"])
    assert "--url" in capsys.readouterr().err
