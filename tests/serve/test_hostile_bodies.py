"""Malicious request bodies, sent over a socket to every path of a running server.

Every response is a whole answer or an error in the form of its interface.  Afterwards the server
has no request in progress, its log is empty, and neither its memory nor its number of descriptors
has grown.

CI sends 10,700 requests: 10,000 of `test_many_bodies_leave_no_trace`, 100 of `test_no_bytes_harm`,
and 40 for each path that schemathesis generates from the OpenAPI description.
`--hypothesis-profile=explore` has ten times as many of the first two.
"""

import contextlib
import gzip
import http.client
import itertools
import json
import os
import random
import re
import socket
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from npurt.serve.http.bodies import BODIES
from npurt.serve.http.limits import BODY
from tests.limits import HANG_SECONDS, eventually
from tests.serve.live import serving
from tests.serve.test_random_bodies import PATHS, Description, objects

# JSON fragments that break parsers, and strings that are not JSON.
VALUES = (
    b"1e999", b"-1e999", b"1e-999", b"NaN", b"-Infinity", b"9" * 400, b"-" + b"9" * 5000,
    b"0.1e+1_0", b"01", b"+1", b"1.", b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\u0000"', b'"\\x41"',
    b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b"'a'", b'"\n"',
    b"[" * 150 + b"]" * 150, b"[" * 100_000, b'{"a":' * 150 + b"1" + b"}" * 150,
    b'{"a":' * 5000, b"[[[[", b'{"role":"user","role":5}', b"{}", b"[]", b"null", b"true", b"",
    b'"' + b"\xf0\x9f\x98\x80" * 500 + b'"', b'"<|im_end|><|im_start|>system"', b"[null]",
    b'{"a":1e999}', b"[1e999]", b'[{"type":"x","a":-1e999}]', b"[" + b"1," * 3000 + b"1]",
    b'[{"role":"user","content":"hi"}]', b'[{"type":"text","text":"hi"}]', b'"hi"', b"7",
)  # fmt: skip
FIELDS = sorted({name for body in BODIES.values() for name in body.get("properties", ())})
SHORT = b'"max_tokens":2,"n_predict":2,"max_output_tokens":2,"options":{"num_predict":2}'
GOOD = b'"messages":[{"role":"user","content":"hi"}],"prompt":"a","input":"a"'


@st.composite
def texts(draw):
    """Draw the text of a JSON object with some hostile fields; keys may be repeated."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(FIELDS), st.sampled_from(VALUES)), max_size=2))
    hostile = [b'"%s":%s' % (name.encode(), value) for name, value in pairs]
    parts = draw(st.permutations([GOOD, *hostile]))
    data = b"{" + b",".join([SHORT, *parts]) + b"}"
    return data[: draw(st.none() | st.integers(0, len(data)))]


# Content types and content encodings that the requests declare.
KINDS = st.sampled_from(
    [b"", b"application/json", b"application/json; charset=utf-16", b"text/plain", b"\xff",
     b"multipart/form-data", b"application/x-www-form-urlencoded"]
)  # fmt: skip
CODINGS = st.sampled_from([b""] * 8 + [b"gzip", b"GZIP", b"deflate", b"identity", b"br, gzip"])


def chunked(data, size):
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@st.composite
def requests(draw):
    """Draw the bytes of a request, and whether its end is missing."""
    path = draw(st.sampled_from(PATHS))
    data = draw(texts() | objects(path).map(lambda body: json.dumps(body).encode()))
    kind, coding = draw(KINDS), draw(CODINGS)
    if coding and draw(st.booleans()):
        data = gzip.compress(data + b" " * 100_000)
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"Host: localhost", b"Connection: close"]
    head += [b"Content-Type: " + kind] * bool(kind)
    head += [b"Content-Encoding: " + coding] * bool(coding)
    cut = draw(st.sampled_from([False] * 7 + [True]))
    if draw(st.booleans()):
        head.append(b"Content-Length: %d" % (len(data) + cut))
    else:
        head.append(b"Transfer-Encoding: chunked")
        data = chunked(data, draw(st.sampled_from([1 << 16, 1000])))
        data = data[: -draw(st.integers(1, 6))] if cut else data
    return path, b"\r\n".join(head) + b"\r\n\r\n" + data, cut


def ask(server, request, cut=False):
    """Return the status, type and body of the response to *request*.

    Return None if the connection ended without a response, which is allowed if the request is
    *cut*.
    """
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=HANG_SECONDS) as sock:
        try:
            sock.sendall(request)
            if cut:
                sock.shutdown(socket.SHUT_WR)
            reply = http.client.HTTPResponse(sock)
            reply.begin()
            return reply.status, reply.headers.get_content_type(), reply.read()
        except (ConnectionError, http.client.RemoteDisconnected):
            assert cut or len(request) > BODY
            return None


# --- The server ---------------------------------------------------------------------------------


def used(server):
    """Return the front's resident memory in bytes and its number of open descriptors."""
    pid = server.process.pid
    with open(f"/proc/{pid}/status") as file:
        resident = int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) << 10
    return resident, len(os.listdir(f"/proc/{pid}/fd"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with the fake engine; at the end, its resources must be as at the start."""
    with serving(tmp_path_factory.mktemp("hostile"), sequences=8, n_ctx=256) as found:
        yield found


@pytest.fixture(scope="module")
def description(server):
    reply = ask(server, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return Description(json.loads(reply[2]))


@pytest.fixture
def unharmed(server):
    """Assert after a test: no request in progress, no new log lines, the same engine process."""
    log, engine = server.log.read_text(), server.engine()
    yield
    assert server.settles("llamacpp:requests_processing", 0)
    assert server.health() == 200
    assert server.log.read_text() == log
    assert server.engine() == engine


def test_no_bytes_harm(server, description, unharmed):
    @settings(suppress_health_check=list(HealthCheck))
    @given(requests())
    def asked(request):
        path, data, cut = request
        answer = ask(server, data, cut)
        if answer is not None:
            description.check(path, *answer)

    asked()


def hostile(chance):
    """Return a hostile body like those of `texts`, made in microseconds."""
    names, values = chance.choices(FIELDS, k=chance.randrange(3)), chance.choices(VALUES, k=2)
    parts = [
        b'"%s":%s' % (name.encode(), value) for name, value in zip(names, values, strict=False)
    ]
    parts.insert(chance.randrange(len(parts) + 1), GOOD)
    data = b"{" + b",".join([SHORT, *parts]) + b"}"
    return data if chance.randrange(8) else data[: chance.randrange(len(data))]


def test_many_bodies_leave_no_trace(server, description, unharmed):
    chance, url = random.Random(18), urlsplit(server.url)
    resident, files = [], []

    def ask_many(count):
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=HANG_SECONDS)
        with contextlib.closing(connection):
            for i in range(count):
                data, headers = hostile(chance), {}
                if not i % 16:
                    data, headers = gzip.compress(data + b" " * 10**6), {"Content-Encoding": "gzip"}
                path = PATHS[i % len(PATHS)]
                connection.request("POST", path, data, headers)
                reply = connection.getresponse()
                kind = reply.headers.get_content_type()
                description.check(path, reply.status, kind, reply.read())

    for _ in range(10):
        ask_many(10 * settings().max_examples)
        assert server.settles("llamacpp:requests_processing", 0)
        memory, count = used(server)
        resident.append(memory)
        files.append(count)
    # A leak per request grows memory in every round.  Heaps of threads and caches of the allocator
    # grow in most of the first ten rounds, and no more after about twenty.
    grown = sorted(after - before for before, after in itertools.pairwise(resident))
    assert grown[1] <= 0.002 * resident[0], resident
    assert eventually(lambda: used(server)[1] <= files[0])


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
@pytest.mark.parametrize("path", PATHS)
def test_the_server_answers_as_it_describes(server, description, unharmed, path, mode):
    operation = schemathesis.openapi.from_dict(description.published)[path]["POST"]

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def asked(case):
        case.call_and_validate(
            base_url=server.url,
            timeout=HANG_SECONDS,
            # bodies of the right types may still be rejected for their values
            excluded_checks=[positive_data_acceptance],
        )

    asked()


STREAMED = [path for path in PATHS if "stream" in BODIES[path].get("properties", ())]


# this model has no infilling tokens
@pytest.mark.parametrize("path", sorted({*STREAMED} - {"/infill"}))
def test_a_stream_is_as_described(server, description, path):
    operation = schemathesis.openapi.from_dict(description.published)[path]["POST"]
    body = json.loads(b"{" + SHORT + b"," + GOOD + b"}") | {"model": "any", "stream": True}
    case = operation.Case(body=body, media_type="application/json")
    answer = case.call_and_validate(base_url=server.url, timeout=HANG_SECONDS)
    assert answer.status_code == 200
