"""Servers behind nginx and Caddy, with the configuration blocks of docs/server-setup.md.

`.ci/programs` installs both proxies.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from tests.blocks import PROJECT, blocks
from tests.limits import HANG_SECONDS, eventually
from tests.serve.live import serving

HOST = "npurt.example.org"
NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.txt;
events {{ }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port};
        {block}
    }}
}}
"""
CADDY = """
{{
    admin off
    auto_https off
    storage file_system {folder}/storage
}}
{block}
"""
MANY = {"prompt": "hi", "max_tokens": 8000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A slow server that runs one completion at a time."""
    folder = tmp_path_factory.mktemp("server")
    slow = {"step_seconds": 0.02, "sequences": 1, "n_ctx": 8192}
    with serving(folder, address={"hosts": [HOST]}, **slow) as found:
        yield found


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request, server, tmp_path_factory):
    """The port of a proxy in front of the server."""
    name = request.param
    program = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if not program:
        pytest.fail(f"there is no {name}: run .ci/programs")
    folder = tmp_path_factory.mktemp(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sign, form = {"nginx": ("proxy_pass", NGINX), "caddy": ("reverse_proxy", CADDY)}[name]
    bodies = [block.body for block in blocks(PROJECT / "docs/server-setup.md")]
    (block,) = (body for body in bodies if sign in body)
    block = block.replace("127.0.0.1:8080", server.url.removeprefix("http://"))
    block = re.sub(rf"^{HOST}", f"http://{HOST}:{port}", block)
    config = folder / "config"
    config.write_text(form.format(folder=folder, port=port, block=block))
    command = {
        "nginx": [program, "-c", config, "-p", folder],
        "caddy": [program, "run", "--config", config, "--adapter", "caddyfile"],
    }[name]

    def answers():
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(OSError), ask(port, "GET", "/health") as reply:
            return reply.status == 200

    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | {"HOME": str(folder)}
        )
    try:
        assert eventually(answers)
        yield port
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def ask(port, method, path, body=None):
    """Send a request and return the response; closing the response closes the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
    headers = {"Host": HOST, "Connection": "close"}
    connection.request(method, path, body and json.dumps(body), headers)
    return connection.getresponse()


def stream(port, path="/v1/completions"):
    """Return the response to a request for a long completion; the client disconnects at the end."""
    return ask(port, "POST", path, {**MANY, "stream": True})


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate", "/completion"])
def test_events_arrive_while_the_text_is_made_and_a_client_may_go_away(proxy, server, path):
    with stream(proxy, path) as reply:
        assert reply.readline()
        assert server.settles("llamacpp:requests_processing", 1)  # the request is in progress now
        for _ in range(20):
            assert reply.readline()
        assert server.settles("llamacpp:requests_processing", 1)
    assert server.settles("llamacpp:requests_processing", 0)


def test_keep_alive_events_arrive_while_a_text_waits(proxy, server):
    with stream(proxy) as first:
        assert first.readline()
        with stream(proxy) as second:
            event = json.loads(second.readline().removeprefix(b"data: "))
            assert server.settles("llamacpp:requests_deferred", 1)
    assert event["choices"][0]["text"] == ""
    assert server.settles("llamacpp:requests_processing", 0)


def test_bodies_of_up_to_4_mib_pass(proxy):
    body = {"prompt": "hi", "max_tokens": 1, "unknown": "x" * (4 * 2**20 - 100)}
    with ask(proxy, "POST", "/v1/completions", body) as reply:
        assert reply.status == 200
    body["unknown"] += "x" * 200
    with ask(proxy, "POST", "/v1/completions", body) as reply:
        assert reply.status == 413


def test_a_full_queue_says_when_to_come_again(proxy, server):
    with contextlib.ExitStack() as stack:
        for _ in range(5):  # one request runs, four wait
            stack.enter_context(stream(proxy))
        with ask(proxy, "POST", "/v1/completions", {"prompt": "hi"}) as refused:
            assert refused.status == 429
            assert int(refused.headers["Retry-After"]) > 0
    assert server.settles("llamacpp:requests_processing", 0)
