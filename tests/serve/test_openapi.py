"""The server's OpenAPI description, and the schemas that validate requests."""

import re
from pathlib import Path

import jsonschema
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st

from npurt.serve.http import schema
from npurt.serve.http.bodies import BODIES, INTEGERS, NUMBERS
from npurt.serve.http.errors import HttpError
from tests.serve.client import Client, asking

PROJECT = Path(__file__).resolve().parents[2]
NAMES = ("a", "b", "c")


@st.composite
def objects(draw, inner):
    properties = draw(st.dictionaries(st.sampled_from(NAMES), inner))
    required = draw(st.sets(st.sampled_from(sorted(properties)))) if properties else ()
    return schema.fields(properties, *sorted(required))


PLAIN = [schema.ANY, schema.FLAG, schema.NUMBER, schema.OBJECT, schema.TEXT, schema.enum("a", ""),
         schema.text(2), schema.integer(-2, 3), schema.integer()]  # fmt: skip
SCHEMAS = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: (
        objects(inner)
        | st.builds(schema.array, inner, st.none() | st.integers(0, 3), st.integers(0, 2))
        | st.builds(schema.either, st.just(schema.FLAG), st.builds(schema.array, inner))
        | st.builds(schema.either, st.just(schema.TEXT), objects(inner))
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-4, 4) | st.sampled_from([2.0, 1e30])
    | st.text("ab\U0001f600", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=6,
)  # fmt: skip


@given(form=SCHEMAS, value=VALUES)
def test_what_is_refused_is_what_the_standard_refuses(form, value):
    right = jsonschema.Draft202012Validator(form).is_valid(value)
    try:
        schema.check(value, form, "x")
    except HttpError:
        assert not right
    else:
        assert right


@pytest.mark.parametrize(
    ("path", "body", "message", "param"),
    [
        ("/v1/completions", {"prompt": "a", "n": 9},
         "n is 9; n must be a whole number of 1 to 8", "n"),
        ("/v1/completions", {"prompt": "a", "stream": "yes"},
         "stream is 'yes'; stream must be true or false", "stream"),
        ("/v1/completions", {},
         "prompt is None; prompt must be a string, or a list of 262144 at most", "prompt"),
        ("/v1/completions", {"prompt": "a", "stop": ["a"] * 17},
         "stop is a list of 17; stop must be a string of 1000 characters at most, "
         "or a list of 16 at most", "stop"),
        ("/v1/chat/completions", {"messages": []},
         "messages is a list of 0; messages must be a list of 1 at least and 1000 at most",
         "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}, {"role": None}]},
         "messages[1].role is None; messages[1].role must be a string", "messages[1].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "tool_choice": "sometimes"},
         "tool_choice is 'sometimes'; tool_choice must be auto or none or required, or an object",
         "tool_choice"),
    ],
)  # fmt: skip
@asking
async def test_errors_say_what_is_wrong_and_what_is_right(path, body, message, param):
    reply = await Client("x")(path, body)

    assert reply.status == 400
    assert reply.json["error"]["message"] == message
    assert reply.json["error"]["param"] == param


@asking
async def test_the_description_is_one_of_openapi_and_needs_no_key():
    reply = await Client("x", guard={"keys": ["secret"]})("/openapi.json")
    found = reply.json

    assert reply.status == 200
    assert found["openapi"] == "3.1.0"
    assert b"tiny" not in reply.body  # the description does not depend on the model
    schemathesis.openapi.from_dict(found).validate()
    chat = found["paths"]["/v1/chat/completions"]["post"]
    assert chat["summary"] == "Answer a chat request in OpenAI's form."
    assert chat["requestBody"]["content"]["application/json"]["schema"]["required"] == ["messages"]
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(chat["responses"]) == {"200", "4XX", "503", "504"}
    assert found["paths"]["/health"]["get"]["security"] == []


@asking
async def test_every_path_of_the_documents_is_described():
    table = (
        (PROJECT / "docs/serving.md").read_text().partition("## Paths")[2].partition("\n\n- ")[0]
    )
    documented = set(re.findall(r"`(/[^`]+)`", table)) - {"/", "/v1"}
    described = (await Client("x")("/openapi.json")).json["paths"] | {"/openapi.json": {}}

    aliases = {"/models", "/v1/health", "/v1/models/{name}", "/api/show"}
    assert documented - described.keys() == set()
    assert described.keys() - documented - aliases == set()


def names_of(form):
    """Return the names of all properties in a schema."""
    found = set(form.get("properties", ()))
    inner = [*form.get("properties", {}).values(), *form.get("anyOf", ()), form.get("items", {})]
    return found.union(*(names_of(each) for each in inner if each))


def test_the_fields_that_are_read_are_those_of_the_schemas():
    packages = ("interfaces", "front", "router", "tools")
    files = [
        path for package in packages for path in (PROJECT / "npurt/serve" / package).glob("*.py")
    ]
    source = "\n".join(path.read_text() for path in files).replace("'", '"')
    reads = "text|required_text|flag|integer|number|items|inner|objects|has|get"
    read = set(re.findall(rf'(?:fields|item|block|message|tool|choice|chosen|function|each|form)'
                          rf'(?:\.values)?\.(?:{reads})\(\s*"(\w+)"', source))  # fmt: skip
    described = set().union(*(names_of(body) for body in BODIES.values()))

    assert {"messages", "stream", "tool_choice"} <= read
    # tool_calls is a field of assistant messages, fail_on_no_slot one of a query.
    assert read - described == {"tool_calls", "fail_on_no_slot"}
    assert {
        name for name in described - {*NUMBERS, *INTEGERS} if f'"{name}"' not in source
    } == set()
