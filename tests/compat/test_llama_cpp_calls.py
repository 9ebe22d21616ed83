"""Function calls: which calls a chat can require, and how text that is no call is returned."""

import json

import pytest

from npurt.compat.llama_cpp import Llama
from npurt.compat.llama_cpp.calls import FORMAT, _read_marked
from npurt.compat.llama_cpp.results import message_of
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
    calls = [call for delta in deltas[1:-1] for call in delta["tool_calls"]]

    empty = {"content": None, "function_call": None, "tool_calls": None}
    assert (deltas[0], deltas[-1]) == ({"role": "assistant", **empty}, {"role": None, **empty})
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
        (None, "required", UnsupportedOp, "does not have tool_choice='required'"),
        (TOOLS, "other", UnsupportedOp, "does not have tool_choice='other'"),
        (TOOLS, 5, UnsupportedOp, "does not have tool_choice=5"),
        (5, SECOND, SettingError, "tools is 5"),
        ([5], SECOND, SettingError, "'second', which is not among tools"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(caller, tools, choice, error, said):
    with pytest.raises(error, match=said):
        caller.create_chat_completion(MESSAGES, tools=tools, tool_choice=choice, max_tokens=1)


# --- Any of several functions ---------------------------------------------------------------------


def test_one_of_several_functions_is_called_when_that_is_required(caller):
    options = {"tools": TOOLS, "tool_choice": "required", **WILD, "max_tokens": 300}
    called = {"first": ({"a": 1}, {"a": 22}), "second": ({"a": 333},)}
    names = set()
    for seed in range(8):
        done = caller.create_chat_completion(MESSAGES, seed=seed, **options)
        (call,) = done["choices"][0]["message"]["tool_calls"]
        names.add(call["function"]["name"])
        assert json.loads(call["function"]["arguments"]) in called[call["function"]["name"]]
        assert done["choices"][0]["finish_reason"] == "tool_calls"
        chunks = list(caller.create_chat_completion(MESSAGES, seed=seed, stream=True, **options))
        deltas = [chunk["choices"][0]["delta"]["tool_calls"] for chunk in chunks[1:-1]]
        assert {each["function"]["name"] for (each,) in deltas} == {call["function"]["name"]}
        arguments = "".join(each["function"]["arguments"] for (each,) in deltas)
        assert json.loads(arguments) == json.loads(call["function"]["arguments"])
    assert names == called.keys()
    cut = caller.create_chat_completion(MESSAGES, **options | {"max_tokens": 3})["choices"][0]
    assert cut["finish_reason"] == "length"
    assert "tool_calls" not in cut["message"]
    assert cut["message"]["content"] == ""  # no text of a call that is cut before its name


FORMS = [
    '{"name": "second", "arguments": {"a": 333}}',
    '```json\n{"name": "second", "parameters": {"a": 333}}\n```',
    '<tools>\n{"name": "second", "arguments": {"a": 333}}\n</tools>',
    '<tool_call>{"name": "second", "arguments": {"a": 333}}</tool_call>',
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", FORMS)
def test_a_call_that_the_model_chooses_is_found(caller, monkeypatch, text, stream):
    monkeypatch.setattr(caller, "_remembered", lambda generation: [*generation][:0] + list(text))
    options = {"tools": TOOLS, "stream": stream, "max_tokens": 1}
    done = caller.create_chat_completion(MESSAGES, **options)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in done]
        assert not any(delta.get("content") for delta in deltas)
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    else:
        calls = done["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"second"}
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"a": 333}


def test_an_answer_that_quotes_json_remains_content(caller, monkeypatch):
    text = f"Write {FORMS[0]} to call it."
    monkeypatch.setattr(caller, "_remembered", lambda generation: [*generation][:0] + list(text))
    done = caller.create_chat_completion(MESSAGES, tools=TOOLS, max_tokens=1)
    assert done["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_a_call_that_is_fed_back_has_arguments_in_the_form_of_the_template(caller):
    call = {"id": "a", "type": "function",
            "function": {"name": "second", "arguments": '{"a": 333}'}}  # fmt: skip
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    source = (
        "{% for m in messages %}{% for t in m.tool_calls or [] %}{% for k, v in "
        "t.function.arguments|items %}<{{ k }}={{ v }}>{% endfor %}{% endfor %}{% endfor %}"
    )
    with Llama(PATH, chat_format=source, verbose=False) as model:
        model.create_chat_completion([*MESSAGES, answer], max_tokens=1)
        assert "<a=333>" in model.detokenize(model.input_ids.tolist()).decode(errors="replace")


def test_functions_have_their_older_names(caller):
    functions = [tool["function"] for tool in TOOLS]
    options = {"functions": functions, **WILD}
    done = caller.create_chat_completion(MESSAGES, function_call={"name": "second"}, **options)
    assert json.loads(done["choices"][0]["message"]["function_call"]["arguments"]) == {"a": 333}
    for choice, shown in ((None, True), ("auto", True), ("none", False)):
        options["max_tokens"] = 1
        caller.create_chat_completion(MESSAGES, function_call=choice, **options)
        prompt = caller.detokenize(caller.input_ids.tolist()).decode(errors="replace")
        assert ("second" in prompt) is shown


# --- chatml-function-calling ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def marked():
    with pytest.warns(UserWarning, match="2048 tokens"):  # the prompt has more than 512 tokens
        model = Llama(PATH, chat_format=FORMAT, n_ctx=2048, verbose=False)
    with model:
        yield model


def prompt_of(model, count):
    return model.detokenize(model.input_ids.tolist()[:count], special=True).decode()


def pieces_of(text):
    return [text], list(text), [text[:9], text[9:]]


CALL = 'functions.first:\n{"a": 1}'
BOTH = CALL + '\nfunctions.second:\n{"a": "}\\n"}'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("message:\nHi\nyou", "Hi\nyou", []),
        ("message:\n", "", []),
        (CALL, None, [("first", '{"a": 1}')]),
        (BOTH, None, [("first", '{"a": 1}'), ("second", '{"a": "}\\n"}')]),
        # the text is cut off
        (BOTH[:-1], None, [("first", '{"a": 1}'), ("second", '{"a": "}\\n"')]),
        (CALL[:-1], None, [("first", '{"a": 1')]),
        ("funct", "funct", []),
    ],
)
def test_an_answer_is_a_message_or_calls(text, content, calls):
    for pieces in pieces_of(text):
        message = message_of("id", _read_marked(pieces))
        functions = [call["function"] for call in message.get("tool_calls", ())]
        assert message["content"] == content
        assert [(each["name"], each["arguments"]) for each in functions] == calls
        assert message.get("function_call") == (functions[0] if len(calls) == 1 else None)


def test_the_prompt_has_the_functions_where_they_may_be_called(marked):
    shown = (None, "none"), ("auto", SECOND)
    for choices, visible in zip(shown, (False, True), strict=True):
        for choice in choices:
            done = marked.create_chat_completion(
                MESSAGES, tools=TOOLS, tool_choice=choice, **WILD | {"max_tokens": 1}
            )
            prompt = prompt_of(marked, done["usage"]["prompt_tokens"])
            assert prompt.count("<|im_start|>") == len(MESSAGES) + 1
            assert prompt.count("functions.second:\n{") == visible
            assert "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n" in prompt
            assert prompt.endswith("functions.second:\n") is (choice is SECOND)
    alone = marked.create_chat_completion(MESSAGES[1:], tools=TOOLS, tool_choice="auto",
                                          **WILD | {"max_tokens": 1})  # fmt: skip
    assert "functions.first" in prompt_of(marked, alone["usage"]["prompt_tokens"])


def test_calls_and_their_results_are_in_the_prompt(marked):
    call = {"id": "1", "type": "function", "function": {"name": "first", "arguments": '{"a": 1}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
        {"role": "assistant", "content": "Good"},
        {"role": "user", "content": "And now?"},
    ]
    done = marked.create_chat_completion(messages, tools=TOOLS, tool_choice="auto", max_tokens=1)
    prompt = prompt_of(marked, done["usage"]["prompt_tokens"])
    assert f"<|im_start|>assistant\n{CALL}\n{CALL}<|im_end|>\n<|im_start|>tool\nSunny" in prompt
    assert "<|im_start|>assistant\nmessage:\nGood<|im_end|>" in prompt


def test_the_model_chooses_between_a_message_and_calls_of_the_schemas(marked):
    options = {"tools": TOOLS, "tool_choice": "auto", **WILD, "max_tokens": 200}
    kinds, several = set(), 0
    for seed in range(10):
        (made,) = marked.create_chat_completion(MESSAGES, seed=seed, **options)["choices"]
        calls = made["message"].get("tool_calls", [])
        kinds.add(bool(calls))
        several += len(calls) > 1
        if calls and made["finish_reason"] == "length":
            calls.pop()
        for call in calls:
            value = json.loads(call["function"]["arguments"])["a"]
            assert value in {"first": (1, 22), "second": (333,)}[call["function"]["name"]]
        chunks = list(marked.create_chat_completion(MESSAGES, seed=seed, stream=True, **options))
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]]
        content = "".join(delta["content"] or "" for delta in deltas)
        assert content == (made["message"]["content"] or "")
        streamed = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        assert [call["index"] for call in streamed] == list(range(len(streamed)))
        assert chunks[-1]["choices"][0]["finish_reason"] == made["finish_reason"]
    assert kinds == {False, True}
    assert several


def test_a_call_can_be_demanded(marked):
    for choice, names in ((SECOND, {"second"}), ("required", {"first", "second"})):
        done = marked.create_chat_completion(MESSAGES, tools=TOOLS, tool_choice=choice, **WILD)
        calls = done["choices"][0]["message"]["tool_calls"]
        assert {call["function"]["name"] for call in calls} <= names


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_real_model_fills_in_the_arguments(real_model, stream):
    """The example of llama-cpp-python's README: this small model extracts the name and the age."""
    tools = [{"type": "function", "function": {"name": "UserDetail", "parameters": PERSON}}]
    question = [
        {"role": "system", "content": "You call functions with what the user says."},
        {"role": "user", "content": "Extract: Jason is 25 years old"},
    ]
    with Llama(
        str(real_model("smollm2-135m")), chat_format=FORMAT, n_ctx=1024, verbose=False
    ) as llm:
        done = llm.create_chat_completion(
            question, tools=tools, temperature=0.0, max_tokens=64, stream=stream,
            tool_choice={"type": "function", "function": {"name": "UserDetail"}},
        )  # fmt: skip
        if stream:
            parts = [c["choices"][0]["delta"]["function_call"] for c in done]
            text = "".join(part["arguments"] for part in parts if part)
        else:
            (call,) = done["choices"][0]["message"]["tool_calls"]
            text = call["function"]["arguments"]
    assert json.loads(text) == {"name": "Jason", "age": 25}
