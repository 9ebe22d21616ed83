"""Thoughts and tool calls are parsed from a model's text, however it is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.decode.calls.choose import format_of
from npurt.llm.decode.calls.coder import Coder
from npurt.llm.decode.calls.format import CallPart, add_part
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.llama3 import Llama3, Pythonic
from npurt.llm.decode.calls.mistral import Mistral
from npurt.llm.decode.calls.reading import Reader, Said, Thought, begins_in_thought

SCHEMAS = {
    "f": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "l": {}}},
    "g": {},
}


def read(pieces, kind=None, **options):
    """Return what a reader parses from *pieces*: thoughts, answer, calls."""
    reader = Reader(kind, SCHEMAS, **options)
    parts = [part for piece in pieces for part in reader.push(piece)] + list(reader.finish())
    calls = []
    for part in parts:
        if isinstance(part, CallPart):
            add_part(calls, part)
    assert reader.called == len(calls)
    return (
        "".join(part.text for part in parts if isinstance(part, Thought)),
        "".join(part.text for part in parts if isinstance(part, Said)),
        [(call.name, json.loads(call.arguments)) for call in calls],
    )


CODER = """<tool_call>
<function=f>
<parameter=a>
5
</parameter>
<parameter=s>
two
lines
</parameter>
</function>
</tool_call>"""
ONE = [("f", {"a": 1})]
TEXTS = [
    (Hermes, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", ONE),
    (Hermes, 'Let me see.\n<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
     "Let me see.", ONE),
    (Hermes, '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n'
     '<tool_call>{"name": "g", "arguments": {}}</tool_call>\n', "", [*ONE, ("g", {})]),
    # the closing marker was an end token
    (Hermes, '<tool_call>{"name": "f", "arguments": {"a": 1}}', "", ONE),
    (Hermes, "<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
    (Hermes, "a < b <tool", "a < b <tool", []),
    (Coder, CODER, "", [("f", {"a": 5, "s": "two\nlines"})]),
    (Coder, CODER.replace("5", "True"), "", [("f", {"a": True, "s": "two\nlines"})]),
    (Coder, "<tool_call><function=g></function></tool_call>", "", [("g", {})]),
    (Llama3, '{"name": "f", "parameters": {"a": 1}}', "", ONE),
    (Llama3, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", ONE),
    (Llama3, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "",
     [*ONE, ("g", {})]),
    (Llama3, '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
    (Llama3, '{"answer": 42}', '{"answer": 42}', []),
    (Llama3, "Hello {x}", "Hello {x}", []),
    (Pythonic, "[f(a=1), g()]", "", [*ONE, ("g", {})]),
    (Pythonic, "[f(a=-1, s='x', l=[1, {'k': None}])]", "",
     [("f", {"a": -1, "s": "x", "l": [1, {"k": None}]})]),
    (Pythonic, "[1, 2, 3]", "[1, 2, 3]", []),
    (Pythonic, "[f(a=open('x'))]", "[f(a=open('x'))]", []),
    (Pythonic, "[f(1)]", "[f(1)]", []),
    (Mistral, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "", ONE),
    (Mistral, '[TOOL_CALLS]f[ARGS]{"a": 1}', "", ONE),
    (Mistral, '[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', "",
     [*ONE, ("g", {})]),
    (Mistral, 'Yes.[TOOL_CALLS]f{"a": 1}', "Yes.", ONE),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "said", "calls"), TEXTS)
def test_calls_are_found_in_any_pieces(kind, text, said, calls):
    assert read([text], kind()) == ("", said, calls)
    assert read(list(text), kind()) == ("", said, calls)
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]], kind()) == ("", said, calls)


@pytest.mark.parametrize(
    ("text", "within", "thought", "said"),
    [
        ("<think>\nhm\n</think>\n\nYes", False, "hm", "Yes"),
        ("\n<think>hm</think>Yes", False, "hm", "Yes"),
        ("hm\n\nwell\n</think>\nYes", True, "hm\n\nwell", "Yes"),
        ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
        ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
        ("<think>it never ends", False, "it never ends", ""),
        ("<thin", False, "", "<thin"),
        ("", False, "", ""),
    ],
)
def test_thoughts_are_told_from_the_answer(text, within, thought, said):
    for pieces in ([text], list(text)):
        assert read(pieces, thinks=True, within=within) == (thought, said, [])


def test_a_model_that_does_not_think_may_write_the_word():
    assert read(["<think>x</think>"]) == ("", "<think>x</think>", [])


def test_a_call_may_follow_a_thought():
    text = '<think>I need f.</think>\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert read(list(text), Hermes(), thinks=True) == ("I need f.", "", ONE)


@pytest.mark.parametrize(
    ("prompt", "within"),
    [("<assistant><think>\n", True), ("<assistant><think>\n\n</think>\n\n", False), ("x", False)],
)
def test_a_prompt_may_begin_the_thought(prompt, within):
    assert begins_in_thought(prompt) is within


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("... <tool_call>\\n<function=example> ...", Coder),
        ("... <tool_call></tool_call> ...", Hermes),
        ("... [TOOL_CALLS] ...", Mistral),
        ('<|start_header_id|> ... "parameters" ...', Llama3),
        ("<|start_header_id|> [func_name1(params_name1=...)]", Pythonic),
        ("plain", Hermes),
    ],
)
def test_the_template_says_how_calls_are_written(template, kind):
    assert type(format_of(template)) is kind


ALPHABET = '<>/{}[]()"\\,:;= \ntool_callfunction=parameter=nameargumentsthinkTOOL_CALLSARGS12'


@pytest.mark.parametrize("kind", [Hermes, Coder, Llama3, Pythonic, Mistral])
@given(
    pieces=st.lists(
        st.text(alphabet=ALPHABET, max_size=30)
        | st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "[TOOL_CALLS]",
                "[ARGS]",
                "<function=f>",
                '{"name": "f"',
                "[f(",
                "<think>",
            ]
        )
    )
)
def test_pieces_make_no_difference(kind, pieces):
    whole = "".join(pieces)
    assert read(pieces, kind(), thinks=True) == read([whole], kind(), thinks=True)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "12", 12),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e400", "1e400"),
    ],
)
def test_values_without_quotes_have_the_type_of_their_schema(schema, text, value):
    body = f"<function=f><parameter=a>\n{text}\n</parameter></function>"
    (call,) = Coder().parse(body, {"f": {"properties": {"a": schema}}})
    assert json.loads(call.arguments) == {"a": value}
