"""Calls of functions: those that a chat demands, and what becomes of the others."""

import json

import pytest

from npurt.compat.llama_cpp import Llama
from npurt.errors import SettingError, UnsupportedOp
from tests.compat.questions import MESSAGES, PATH

TEMPLATE = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}"
WILD = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 60}


def tool(name, *values):
    schema = {"type": "object", "properties": {"a": {"enum": list(values)}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("first", 1, 22), tool("second", 333)]
SECOND = {"type": "function", "function": {"name": "second"}}


@pytest.fixture(scope="module")
def caller():
    with Llama(PATH, chat_format=TEMPLATE, verbose=False) as model:
        yield model


@pytest.mark.parametrize(
    ("tools", "choice", "name", "arguments"),
    [
        (TOOLS, SECOND, "second", ({"a": 333},)),
        (
            TOOLS,
            {"type": "function", "function": {"name": "first"}},
            "first",
            ({"a": 1}, {"a": 22}),
        ),
        (TOOLS[:1], "required", "first", ({"a": 1}, {"a": 22})),
    ],
)
def test_a_call_that_is_demanded_is_made_with_arguments_of_its_schema(
    caller, tools, choice, name, arguments
):
    done = caller.create_chat_completion(MESSAGES, tools=tools, tool_choice=choice, **WILD)
    (made,) = done["choices"]
    (call,) = made["message"]["tool_calls"]

    assert made["finish_reason"] == "tool_calls"
    assert made["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": call["function"],
        "tool_calls": [{"id": call["id"], "type": "function", "function": call["function"]}],
    }
    assert call["function"]["name"] == name
    assert json.loads(call["function"]["arguments"]) in arguments
    assert done["id"] in call["id"]


def test_a_stream_has_the_call_in_pieces(caller):
    options = {"tools": TOOLS, "tool_choice": SECOND, "stream": True}
    chunks = list(caller.create_chat_completion(MESSAGES, **options, **WILD))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]

    assert deltas[0] == {"role": "assistant"}
    assert {(call["index"], call["id"], call["function"]["name"]) for call in calls} == {
        (0, f"call__0_second_{chunks[0]['id']}", "second")
    }
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"a": 333}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "tool_calls"]


def test_a_call_that_is_cut_says_so(caller):
    options = {"tools": TOOLS, "tool_choice": SECOND, **WILD, "max_tokens": 2}
    (made,) = caller.create_chat_completion(MESSAGES, **options)["choices"]
    assert made["finish_reason"] == "length"


def test_a_template_sees_tools_unless_they_are_hidden(caller):
    for choice in (None, "auto"):
        caller.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice=choice, max_tokens=1)
        assert "second" in caller.detokenize(caller.input_ids.tolist()).decode(errors="replace")
    done = caller.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice="none", max_tokens=1)
    assert "second" not in caller.detokenize(caller.input_ids.tolist()).decode(errors="replace")
    assert set(done["choices"][0]["message"]) == {"role", "content"}


@pytest.mark.parametrize(
    ("tools", "choice", "error", "said"),
    [
        (TOOLS, {"function": {"name": "third"}}, SettingError, "'third', which is not among tools"),
        (None, SECOND, SettingError, "'second', which is not among tools"),
        (TOOLS, {"function": {}}, SettingError, "None, which is not among tools"),
        (TOOLS, "required", UnsupportedOp, "does not have tool_choice='required'"),
        (TOOLS, "other", UnsupportedOp, "does not have tool_choice='other'"),
        (TOOLS, 5, UnsupportedOp, "does not have tool_choice=5"),
        (5, SECOND, SettingError, "tools is 5"),
        ([5], SECOND, SettingError, "'second', which is not among tools"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(caller, tools, choice, error, said):
    with pytest.raises(error, match=said):
        caller.create_chat_completion(MESSAGES, tools=tools, tool_choice=choice, max_tokens=1)


def test_the_format_for_calls_is_refused_with_what_does_the_same():
    with pytest.raises(UnsupportedOp, match="chatml-function-calling") as caught:
        Llama(PATH, chat_format="chatml-function-calling", verbose=False)
    assert "tool_choice work" in caught.value.remedy
