"""Calls outside the model's own format, and calls that are yielded while they are written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.llm.decode.calls.coder import Coder
from npurt.llm.decode.calls.format import CallPart, add_part
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.llama3 import Llama3, Pythonic
from npurt.llm.decode.calls.mistral import Mistral
from npurt.llm.decode.calls.reading import GROWS, Reader, Said

SCHEMAS = {
    "f": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}}},
    "get_weather": {"properties": {"city": {"type": "string"}}},
}
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
OSLO = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
CITY = [("get_weather", {"city": "Paris"})]
BOTH = [*CITY, ("get_weather", {"city": "Oslo"})]


def parts_of(pieces, kind, *, cut=False, forced=()):
    reader = Reader(kind(), SCHEMAS, forced=forced)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return parts + list(reader.finish(cut=cut)), reader


def read(pieces, kind=Hermes, **options):
    """Return the answer and the calls, each as its name and the text of its arguments."""
    parts, reader = parts_of(pieces, kind, **options)
    calls = []
    for part in parts:
        if isinstance(part, CallPart):
            add_part(calls, part)
    assert len(calls) == reader.called
    said = "".join(part.text for part in parts if isinstance(part, Said))
    return said, [(call.name, call.arguments) for call in calls]


def everywhere(text, kind=Hermes, **options):
    """Return what is read from *text*; assert that it is the same wherever *text* is cut."""
    said, calls = read([text], kind, **options)
    values = [(name, json.loads(arguments)) for name, arguments in calls]
    for pieces in (list(text), *([text[:i], text[i:]] for i in range(1, len(text)))):
        again, others = read(pieces, kind, **options)
        assert (again, [(n, json.loads(a)) for n, a in others]) == (said, values), pieces
    return said, values


KINDS = [Hermes, Coder, Llama3, Pythonic, Mistral]
PRETTY = json.dumps(json.loads(PARIS), indent=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (PARIS, CITY),
        (f"\n {PRETTY}\n", CITY),
        (f"```json\n{PRETTY}\n```", CITY),
        (f"```xml\n{PARIS}\n```", CITY),
        (f"```\n{PARIS}\n```\n", CITY),
        (f"```json\n{PARIS}", CITY),  # the model ended without the fence
        (f"```xml\n<tool_call>\n{PARIS}\n</tool_call>\n```", CITY),
        *[(f"<{tag}>\n{PARIS}\n</{tag}>", CITY) for tag in
          ("tools", "function_call", "json", "response", "tool")],
        (f"<tools>{PARIS}", CITY),
        (f"<tools>\n{PARIS}\n</tool_call>", CITY),
        (f"<tools>\n```json\n{PARIS}\n```\n</tools>", CITY),
        (f"<tools>```json\n{PARIS}\n```</tools>\nThat is the call.", CITY),
        (f"[{PARIS}, {OSLO}]", BOTH),
        (f"{PARIS}\n{OSLO}", BOTH),
        (f"{PARIS}; {OSLO}", BOTH),
        (f"{PARIS},\n{OSLO}", BOTH),
        (f"```json\n{PARIS}\n{OSLO}\n```", BOTH),
        (f"```json\n{PARIS}\n```\n```json\n{OSLO}\n```", BOTH),
        (f"<tools>{PARIS}</tools>\n<tools>{OSLO}</tools>", BOTH),
        (f"<function_call>{PARIS}{OSLO}</function_call>", BOTH),
        ('{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', CITY),
        ('{"arguments": {"city": "Paris"}, "name": "get_weather"}', CITY),
        (f'{{"type": "function", "function": {PARIS}}}', CITY),
        (f'{{"tool_calls": [{PARIS}, {OSLO}]}}', BOTH),
        (f"I will look.\n```json\n{PARIS}\n```", CITY),
        (f"I will look.\n\n{PARIS}\n{OSLO}\n", BOTH),
        (f"{PARIS}\nThat is the call.", CITY),
    ],
)  # fmt: skip
def test_a_call_of_a_listed_function_is_found_in_these_forms(kind, text, calls):
    said, found = everywhere(text, kind)
    assert found == calls
    assert said.strip() in ("", "I will look.", "That is the call.")


@pytest.mark.parametrize("end", ["```\n</tool_call>", "</tool_call>", "```", ""])
def test_a_fence_inside_the_tags_of_the_format_is_dropped(end):
    assert everywhere(f"<tool_call>\n```json\n{PARIS}\n{end}") == ("", CITY)


def test_arguments_that_are_null_are_none():
    assert everywhere('{"name": "f", "arguments": null}') == ("", [("f", {})])


DEFINITION = (
    '{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": '
    '{"type": "string"}}, "required": ["city"]}}'
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "arguments": {"city": "Paris"}}',
        '```json\n{"name": "get_weather_of", "arguments": {}}\n```',
        '{"city": "Paris"}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "arguments": [1]}',
        '{"name": "get_weather", "arguments": {"city": NaN}}',
        f"You would write {PARIS} here.",
        f"For example:\n```json\n{PARIS}\n```\nwould ask for Paris.",
        f"{DEFINITION}",
        f"```json\n{DEFINITION}\n```",
        f'{{"type": "function", "function": {DEFINITION}}}',
        "```python\nprint({1: 2})\n```",
        "<b>bold</b>",
        "<tools>none</tools>",
        "`x` is a name",
        "[1, 2]",
        "{",
        "```",
        '{"name": "get_w',
        f"- one\n- two\n\n`{PARIS}`",
    ],
)
def test_an_answer_that_quotes_json_remains_text(kind, text):
    assert everywhere(text, kind) == (text, [])


def test_text_that_is_no_call_is_not_held_back():
    reader = Reader(Hermes(), SCHEMAS)
    text = '```json\n{"name": "Bob", "age": 5}\n```\n'
    said = ["".join(part.text for part in reader.push(sign)) for sign in text]
    assert "".join(said[: text.index("B") + 1]) == text[: text.index("B") + 1]


def test_a_quotation_holds_back_no_later_text():
    reader = Reader(Hermes(), SCHEMAS)
    text = f"As in\n{PARIS}\nyou see"
    assert "".join(part.text for sign in text for part in reader.push(sign)) == text


# --- Calls in pieces ----------------------------------------------------------------------------

LONG = {"s": 'a "quoted"\n\ttext, é 😀 \\ ' * 9, "a": 5}
DUMPED = json.dumps(LONG)
WRITTEN = [
    (Hermes, f'<tool_call>\n{{"name": "f", "arguments": {DUMPED}}}\n</tool_call>'),
    (Hermes, f'```json\n{{"name": "f", "arguments": {DUMPED}}}\n```'),
    (Coder, f"<tool_call>\n<function=f>\n<parameter=s>\n{LONG['s']}\n</parameter>\n"
     "<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"),
    (Llama3, f'<|python_tag|>{{"name": "f", "parameters": {DUMPED}}}'),
    (Llama3, f'{{"name": "f", "parameters": {DUMPED}}}'),
    (Mistral, f"[TOOL_CALLS]f[ARGS]{DUMPED}"),
    (Mistral, f'[TOOL_CALLS][{{"name": "f", "arguments": {DUMPED}}}]'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_long_arguments_are_yielded_as_they_grow(kind, text):
    parts, reader = parts_of(list(text), kind)
    assert len(parts) > len(DUMPED) / 3
    assert {part.number for part in parts} == {0}
    assert json.loads("".join(part.arguments for part in parts)) == LONG
    assert reader.ended == 1
    assert everywhere(text, kind) == ("", [("f", LONG)])


@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_several_long_calls_and_text_after_them(kind, text):
    if kind in (Hermes, Coder):
        assert everywhere(f"{text}\n{text} Done.", kind)[1] == [("f", LONG)] * 2
    elif kind is Llama3:
        assert everywhere(f"{text}; {text.removeprefix('<|python_tag|>')}", kind) == (
            "", [("f", LONG)] * 2
        )  # fmt: skip
    elif "ARGS" in text:
        assert everywhere(text * 2, kind) == ("", [("f", LONG)] * 2)


@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_a_call_that_a_limit_cuts_off_is_a_call(kind, text):
    for end in range(text.index("quoted"), len(text) - 30, 7):
        for pieces in ([text[:end]], list(text[:end])):
            said, calls = read(pieces, kind, cut=True)
            assert said == ""
            ((name, arguments),) = calls
            assert name == "f"
            assert arguments.startswith('{"s": "')
            with pytest.raises(ValueError, match=r".*"):
                json.loads(arguments)


def test_a_short_call_that_ends_early_by_itself_is_text():
    text = '<tool_call>{"name": "f", "arguments": {"s": "x'
    assert read(list(text)) == (text, [])
    assert read(list(text), cut=True) == ("", [("f", '{"s": "x')])


@pytest.mark.parametrize("forced", [("f",), ("get_weather", "f")])
@pytest.mark.parametrize("cut", [False, True])
def test_a_forced_call_is_never_content(forced, cut):
    text = f'{{"name": "f", "arguments": {DUMPED}}}'
    for end in (3, 12, 20, 40, len(text)) if cut else (len(text),):
        for pieces in ([text[:end]], list(text[:end])):
            said, calls = read(pieces, cut=cut, forced=forced)
            assert said == ""
            assert [name for name, _ in calls] == (["f"] if len(forced) == 1 or end > 39 else [])
    assert json.loads(calls[0][1]) == LONG


def test_surrogates_and_control_characters_in_growing_arguments():
    text = "x" * GROWS + r"\ud83d\ude00 \ud83d. \udc00 \\ud83d" + "\n"
    whole = f'<tool_call>{{"name": "f", "arguments": {{"s": "{text}"}}}}</tool_call>'
    said, calls = read(list(whole))
    assert said == ""
    assert json.loads(calls[0][1])["s"] == "x" * GROWS + "😀 \ufffd. \ufffd \\ud83d\n"


def test_text_after_broken_arguments_is_text():
    begin = f'<tool_call>{{"name": "f", "arguments": {{"s": "{"x" * GROWS}", '
    said, calls = read(list(begin + "oops </tool_call>"))
    assert said.startswith("oops")
    assert calls[0][0] == "f"


SIGNS = [
    "<parameter=s>", "</parameter>", "\n</parameter>\n<parameter=a>", "</function>", "\n",
    "</parameter></function>", "</tool_call>", "<", "</", "x" * 70, '"', "\\", "é",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(SIGNS) | st.text(max_size=3), max_size=8).map("".join))
def test_calls_with_tags_are_the_same_in_pieces_and_whole(text):
    body = (
        f"<tool_call>\n<function=f>\n<parameter=s>\n{'y' * 70}{text}\n</parameter>\n</function>\n"
    )
    whole = Reader(Coder(), SCHEMAS)
    parts = list(whole.push(f"{body}</tool_call>")) + list(whole.finish())
    _, calls = read(list(f"{body}</tool_call>"), Coder)
    joined = "".join(part.arguments for part in parts if isinstance(part, CallPart))
    if whole.ended == whole.called == 1:
        assert json.loads(calls[0][1]) == json.loads(joined)


def test_many_texts_that_look_like_calls_take_little_time():
    """Without a bound, each of them is read again as a possible quotation."""
    text = "x" + '\n{"name": "f", "arguments": {' * 3000
    assert read([text]) == (text, [])
