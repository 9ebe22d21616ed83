"""Tool calls whose arguments contain the syntax of calls: markers, braces, quotes, escapes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.llm.decode.calls.coder import Coder
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.llama3 import Llama3, Pythonic
from npurt.llm.decode.calls.mistral import Mistral
from tests.llm.test_reading import read

MARKERS = (
    "<tool_call>", "</tool_call>", "</function>", "</parameter>", "<function=g>", "<parameter=a>",
    "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "{", "}", "[", "]", "(", ")", ";", ",", '"', "'",
    "\\", "\\n", '\\"', "\n", "\t", "\x00", "\u2028", "é", "日本", "😀", "#", "<think>", "f(a=1)",
    '{"name": "f", "arguments": {}}',
)  # fmt: skip
TEXT = st.lists(st.sampled_from(MARKERS) | st.text(max_size=5), max_size=6).map("".join)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.fixed_dictionaries({"s": TEXT}, optional={"l": VALUES})
CALLS = st.lists(st.tuples(st.sampled_from("fg"), ARGUMENTS), min_size=1, max_size=2)


def hermes(calls, dump):
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {dump(arguments)}}}\n</tool_call>'
        for name, arguments in calls
    )


def llama3(calls, dump):
    return ";".join(f'{{"name": "{name}", "parameters": {dump(given)}}}' for name, given in calls)


def pythonic(calls, dump):
    def call(name, arguments):
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return f"[{', '.join(call(*each) for each in calls)}]"


def mistral(calls, dump):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(arguments)}" for name, arguments in calls)


def listed(calls, dump):
    each = (f'{{"name": "{name}", "arguments": {dump(given)}}}' for name, given in calls)
    return f"[TOOL_CALLS][{', '.join(each)}]"


WRITTEN = [(Hermes, hermes), (Llama3, llama3), (Pythonic, pythonic), (Mistral, mistral),
           (Mistral, listed)]  # fmt: skip


def parts_at_every_cut(text, kind):
    """Return what the reader finds in *text*; assert that it is the same wherever *text* is cut."""
    whole = read([text], kind())
    assert read(list(text), kind()) == whole
    for cut in range(1, len(text), 1 + len(text) // 50):
        assert read([text[:cut], text[cut:]], kind()) == whole
    return whole


@pytest.mark.parametrize(("kind", "write"), WRITTEN)
@pytest.mark.parametrize("ascii_only", [True, False])
@settings(max_examples=60)
@given(calls=CALLS)
def test_arguments_may_hold_anything(kind, write, ascii_only, calls):
    text = write(calls, lambda value: json.dumps(value, ensure_ascii=ascii_only))
    assert parts_at_every_cut(text, kind) == ("", "", calls)


def coder(calls):
    def function(name, arguments):
        values = "".join(
            f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
        )
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"

    return "\n".join(function(*each) for each in calls)


@settings(max_examples=100)
@given(calls=st.lists(st.tuples(st.just("f"), st.fixed_dictionaries({"s": TEXT})), min_size=1,
                      max_size=2))  # fmt: skip
def test_texts_between_tags_may_hold_anything_but_their_end(calls):
    for _, arguments in calls:  # the syntax has no escapes, so this tag ends the argument
        text = "".join(arguments["s"].split()) + "</parameter>"
        ends = ("</parameter><parameter=", "</parameter></function>")
        if any(end in text for end in ends) or "<function=g></function>" in text:
            return
    assert parts_at_every_cut(coder(calls), Coder) == ("", "", calls)


@pytest.mark.parametrize(
    ("kind", "text", "said", "calls"),
    [
        (Hermes, '<tool_call>{"name": "f", "arguments": {"s": "a</tool_call>b"}}</tool_call> c',
         " c", [("f", {"s": "a</tool_call>b"})]),
        # The name has an extra quote.  JSON strings have no line feed, so the call ends at the next
        # end tag.
        (Hermes, '<tool_call>{"name": "f"", "arguments": {}}\n</tool_call>\n'
         '<tool_call>{"name": "g"}</tool_call>',
         '<tool_call>{"name": "f"", "arguments": {}}\n</tool_call>', [("g", {})]),
        (Hermes, '<tool_call>say "</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
         '<tool_call>say "</tool_call>', [("g", {})]),
        (Coder, "<tool_call><function=f><parameter=s>x</tool_call>\n"
         "<tool_call><function=g></function></tool_call>",
         "<tool_call><function=f><parameter=s>x</tool_call>", [("g", {})]),
        (Coder, "<tool_call><function=f></function><function=g></function></tool_call>", "",
         [("f", {}), ("g", {})]),
        (Pythonic, r"[f(s='\d+')]", "", [("f", {"s": r"\d+"})]),  # Python warns about this escape
        (Pythonic, "[f(a=true, s=null)]", "", [("f", {"a": True, "s": None})]),
        (Pythonic, r"[f(s='\ud83d\ude00')]", "", [("f", {"s": "😀"})]),
        (Hermes, r'<tool_call>{"name": "f", "arguments": {"s": "\ud83d"}}</tool_call>', "",
         [("f", {"s": "\ufffd"})]),
        (Mistral, '[TOOL_CALLS] [ {"name": "f"}] [{"name": "g"}]', "", [("f", {}), ("g", {})]),
        (Mistral, "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ],
)  # fmt: skip
def test_calls_that_are_hard_to_read(kind, text, said, calls):
    assert parts_at_every_cut(text, kind) == ("", said, calls)
