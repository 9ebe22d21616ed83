"""Random bodies: every answer matches the OpenAPI description, and no state is left behind.

Hypothesis draws 400 bodies for each path, and one application without sockets answers them;
after each answer it must have no request in progress.  `--hypothesis-profile=explore` (in `make
soak`) draws 24,000 bodies, different ones each time.  tests/serve/test_hostile_bodies.py sends
other bodies over sockets.
"""

import asyncio
import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.serve.http.bodies import BODIES
from tests.limits import HANG_SECONDS
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
PATHS = sorted(BODIES)
RIGHT = {"max_tokens": 5, "n": 2, "stream": True, "temperature": 0.5, "top_k": 4, "seed": 3,
         "stop": ["a"], "logprobs": True, "logit_bias": {"70": -3}}  # fmt: skip
NUMBERS = st.sampled_from([0, -1, 0.5, 7, 1e308, -1e308, 5e-324, 1 << 63, 10**400]) | st.integers()
PROMPTS = st.text(max_size=20) | st.lists(st.integers(-2, 700), max_size=5) | ANY


ITEMS = st.lists(
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
SIMPLE = st.fixed_dictionaries({
    "messages": st.text(max_size=9).map(lambda text: [{"role": "user", "content": text}]),
    "prompt": st.just("a"),
})  # fmt: skip
STRANGE = st.fixed_dictionaries({"messages": MESSAGES | ANY, "prompt": PROMPTS})
INPUTS = st.fixed_dictionaries({"input": st.just("hi") | ITEMS | ANY})


def objects(path):
    """Return a strategy for bodies of *path*; most of their fields are fields that *path* reads."""
    properties = BODIES[path].get("properties", {"n": None})
    right = st.lists(st.sampled_from([name for name in RIGHT if name in properties] or ["n"]))
    wild = st.dictionaries(st.sampled_from(sorted(properties)), NUMBERS | ANY, max_size=2)
    return st.tuples(SIMPLE | STRANGE, INPUTS, right, wild).map(
        lambda parts: parts[0] | parts[1] | {name: RIGHT[name] for name in parts[2]} | parts[3]
    )


# --- What an answer must be ---------------------------------------------------------------------


def no_number(text):
    raise AssertionError(f"{text} is no JSON")


def strict(data):
    return json.loads(data, parse_constant=no_number)


class Description:
    """The OpenAPI description that the server publishes at /openapi.json."""

    def __init__(self, published):
        self.published = published
        self.answers, self.errors = {}, {}  # by path: content types, and the schema of errors
        for path, methods in published["paths"].items():
            if "post" in methods:
                responses = methods["post"]["responses"]
                self.answers[path] = responses["200"]["content"]
                form = responses["4XX"]["content"]["application/json"]["schema"]
                self.errors[path] = jsonschema.Draft202012Validator(form)

    def check(self, path, status, kind, data):
        """Assert that an answer of *path* is whole, or an error in the form of its interface."""
        assert status == 200 or 400 <= status < 500, (status, data)
        if status == 200:
            assert kind in self.answers[path]
            lines = data.splitlines() if kind != "application/json" else [data]
            for line in (line.removeprefix(b"data: ") for line in lines):
                if line.startswith(b"{"):
                    assert not strict(line).get("error")
        else:
            assert kind == "application/json", data
            self.errors[path].validate(strict(data))


# --- The bodies ---------------------------------------------------------------------------------


class Asker:
    """Sends bodies to one application, which must have no request in progress after each answer."""

    def __init__(self, runner):
        self.run = runner.run
        self.client = Client(n_ctx=128)
        self.description = Description(self.run(self.client("/openapi.json")).json)

    def __call__(self, path, data):
        self.run(self._ask(path, data))

    async def _ask(self, path, data):
        async with asyncio.timeout(HANG_SECONDS):
            reply = await self.client(path, data)
            kind = reply.headers["content-type"].partition(";")[0]
            self.description.check(path, reply.status, kind, reply.body)
            assert self.client.front.active == 0
            assert not self.client.backend.busy
            while len(asyncio.all_tasks()) > 1:  # the engine's task ends in its next turn
                await asyncio.sleep(0)


@pytest.fixture(scope="module")
def ask():
    with asyncio.Runner() as runner:
        yield Asker(runner)


@pytest.mark.parametrize("path", PATHS)
def test_no_object_is_a_failure(ask, path):
    @settings(max_examples=300)
    @given(objects(path))
    def asked(body):
        ask(path, json.dumps(body).encode())

    asked()


@pytest.mark.parametrize("path", PATHS)
@given(data=st.binary(max_size=100) | ANY.map(lambda value: json.dumps(value).encode()))
def test_no_bytes_are_a_failure(ask, path, data):
    ask(path, data)
