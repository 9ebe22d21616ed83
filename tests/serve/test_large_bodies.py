"""Large bodies: no request delays others, as arrays are bounded and work is done in threads.

The event loop runs in the main thread of these tests.  A test counts the lines that it executes
between two callbacks, and looks where JSON is parsed and written; it measures no time.
"""

import asyncio
import contextlib
import json
import sys
import threading

import pytest

from bench.serve_stalls import ATTACKS
from npurt.serve.http import limits, schema, sse
from npurt.serve.http.errors import HttpError
from tests.serve.client import SAY_HI, Client, asking

LINES = 30_000  # Python lines of one callback: about 10 ms on a board
PARSED = 1 << 16  # bytes of JSON that the event loop may parse or write at once: below a ms


class Watch:
    """Counts the lines that the main thread executes in each callback of the event loop."""

    def __init__(self, monkeypatch):
        self.most = self._lines = 0
        self.bytes = 0
        run = asyncio.events.Handle._run

        def counted(handle):
            self._lines = 0
            run(handle)
            self.most = max(self.most, self._lines)

        monkeypatch.setattr(asyncio.events.Handle, "_run", counted)
        for module, name in ((limits, "parsed"), (sse, "compact")):
            monkeypatch.setattr(module, name, self._measured(getattr(module, name)))

    def _measured(self, function):
        def call(value, **options):
            found = function(value, **options)
            if threading.current_thread() is threading.main_thread():
                self.bytes = max(self.bytes, len(value if isinstance(value, bytes) else found))
            return found

        return call

    def _trace(self, frame, event, argument):
        self._lines += event == "line"
        return self._trace

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)


@pytest.mark.parametrize("name", ATTACKS)
@asking
async def test_a_large_body_does_not_hold_the_event_loop(name, monkeypatch):
    path, make = ATTACKS[name]
    ask, body = Client(n_ctx=512), make()
    with Watch(monkeypatch) as watch:
        reply = await ask(path, body)
    assert reply.status in (200, 400, 413), reply.body[:200]
    assert watch.most < LINES
    assert watch.bytes < PARSED
    assert (await ask("/health")).status == 200


@asking
async def test_a_large_answer_is_written_in_a_thread(monkeypatch):
    ask = Client(n_ctx=512)
    for body in ({"content": "ab " * 20_000}, {"content": "ab " * 20_000, "with_pieces": True}):
        with Watch(monkeypatch) as watch:
            reply = await ask("/tokenize", body)
        assert len(reply.json["tokens"]) > 10_000
        assert watch.most < LINES
        assert watch.bytes < PARSED


@pytest.mark.parametrize(
    ("element", "count", "refused"),
    [
        ("1", limits.VALUES - 10, False),
        ("1", limits.VALUES + 1, True),
        ("[]", limits.CONTAINERS - 10, False),
        ("{}", limits.CONTAINERS + 1, True),
        ('"[,{"', limits.CONTAINERS + 1, False),
        ('"\\"[,{"', limits.CONTAINERS + 1, False),
        ('"\\\\",[]', limits.CONTAINERS + 1, True),
        ('""', limits.VALUES + 1, True),
        ('"::"', limits.CONTAINERS, False),
        ('"":1,"":[]', limits.CONTAINERS, True),
    ],
)
def test_the_values_of_a_body_are_counted_before_it_is_parsed(element, count, refused):
    data = ('{"x":[' + ",".join([element] * count) + "]}").encode()
    expected = pytest.raises(HttpError, match="more than") if refused else contextlib.nullcontext()
    with expected:
        limits._require_few_values(data)


def test_a_text_may_have_any_number_of_commas():
    text = '[{,\\"' * 400_000
    assert limits.parsed(json.dumps({"x": text}).encode()) == {"x": text}


def test_many_integers_are_checked_at_once(monkeypatch):
    given = schema.fields({"x": schema.array(schema.either(schema.TEXT, schema.integer(0, 9)))})
    counted = []
    check = schema.check
    monkeypatch.setattr(schema, "check", lambda *args: counted.append(1) or check(*args))
    schema.check({"x": [1] * 10_000}, given)
    assert len(counted) < 5
    for wrong, what in ([10], "x\\[0\\] is 10"), ([1, -1], "x\\[1\\] is -1"), ([1, True], "True"):
        with pytest.raises(HttpError, match=what):
            check({"x": wrong}, given)


@pytest.mark.parametrize("value", [{"a": list(range(500)), "b": 1}, {"a": []}, {}, {"a": [[]] * 70},
                                   {"x": "é\ud800", "a": [{"b": [0.5] * 100}] * 100}])  # fmt: skip
def test_a_whole_answer_is_the_same_json(value):
    assert sse.whole(value) == sse.compact(value)


def test_exceeds_reads_no_more_than_it_must():
    assert not limits.exceeds({"a": ["x" * 10, 1, {"b": None}]}, 40)
    assert limits.exceeds({"a": "x" * 100}, 40)
    assert limits.exceeds([[[[]] * 10] * 10] * 10, 400)
    assert limits.exceeds(dict.fromkeys(map(str, range(100))), 100)


@asking
async def test_metadata_are_bounded_as_they_are_repeated_in_every_event():
    ask = Client()
    reply = await ask("/v1/responses", {"input": "a", "metadata": {str(i): "" for i in range(17)}})
    assert reply.status == 400
    assert "an object of 16 entries at most" in reply.json["error"]["message"]
    assert (await ask("/v1/chat/completions", SAY_HI | {"max_tokens": 2})).status == 200
