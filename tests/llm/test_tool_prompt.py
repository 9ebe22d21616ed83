"""Calls in messages reach a chat template in the form that it expects, also one without tools."""

import json

import pytest

from npurt.errors import LayoutError
from npurt.llm.text.chat import ChatTemplate
from tests.llm.conftest import open_tiny

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ARGUMENTS = {"city": "Rome", "days": 2}
WITH_ITEMS = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{% for k, v in call.function.arguments|items %}[{{ k }}={{ v }}]{% endfor %}{% endfor %}"
    "{% endfor %}{{ tools }}"
)
WITH_TOJSON = WITH_ITEMS[: WITH_ITEMS.index("{% for k")] + (
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}{{ tools }}"
)
JOINED = WITH_TOJSON.replace(
    "{{ call.function.arguments | tojson }}", "{{ '[' + call.function.arguments + ']' }}"
)
CONCATENATED = JOINED.replace("+ call.function.arguments +", "~ call.function.arguments ~")
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


def talk(arguments):
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "12 C"},
    ]


def render(source, messages, **given):
    return ChatTemplate(source, bos="", eos="").render(messages, **given)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (WITH_ITEMS, "[city=Rome][days=2]"),
        (WITH_TOJSON, '{"city": "Rome", "days": 2}'),
        (JOINED, '[{"city": "Rome", "days": 2}]'),
        (CONCATENATED, '[{"city": "Rome", "days": 2}]'),
    ],
)
@pytest.mark.parametrize("given", [ARGUMENTS, json.dumps(ARGUMENTS)])
def test_arguments_have_the_form_that_the_template_expects(source, written, given):
    assert render(source, talk(given), tools=TOOLS) == f"How is it?{written}12 C{TOOLS}"


@pytest.mark.parametrize("given", [ARGUMENTS, json.dumps(ARGUMENTS)])
@pytest.mark.parametrize("source", [PLAIN, NO_SYSTEM, DROPS_SYSTEM])
def test_a_template_without_tools_gets_them_as_text(source, given):
    text = render(source, [*talk(given), {"role": "user", "content": "And now?"}], tools=TOOLS)

    assert '{"name": "weather", "parameters": {"type": "object"}}' in text
    assert text.index("<tools>") < text.index("How is it?")
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}' in text
    assert "<user><tool_response>\n12 C\n</tool_response>\nAnd now?" in text
    assert text.startswith("<system>" if source is PLAIN else "<user>")


def test_a_system_message_is_kept_before_the_tools():
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    assert render(PLAIN, messages, tools=TOOLS).startswith("<system>Be short.\n\nYou can call")
    with pytest.raises(LayoutError, match="no system"):
        render(NO_SYSTEM, messages, tools=TOOLS)


def test_variables_have_the_defaults_of_llama_cpp():
    source = (
        "{% if date_string is defined %}{{ date_string | length }}{% endif %}{{ enable_thinking }}"
    )
    hello = [{"role": "user", "content": "Hello"}]
    assert render(source, hello) == "11True"
    assert render(source, hello, date_string="1 May", enable_thinking=False) == "5False"
    assert render("{{ x is defined }}", hello) == "False"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "weather", "arguments": {"city": "Rome"}}',
        '```json\n{"name": "weather", "arguments": {"city": "Rome"}}\n```',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    ],
)
def test_an_answer_of_llama_is_parsed_to_a_message_that_can_be_fed_back(text):
    with open_tiny(chat_template=PLAIN, n_ctx=512) as llm:
        llm.chat([{"role": "user", "content": "Hi"}], tools=TOOLS, max_tokens=1)
        message = llm.parse_answer(text, TOOLS)
        quoted = llm.parse_answer(f"Write {text}", TOOLS) if text[0] == "{" else None
        plain = llm.parse_answer(text)
        prompt = llm.detokenize(llm.apply_chat_template([message]))

    (call,) = message["tool_calls"]
    assert message["content"] is None
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    assert plain == {"role": "assistant", "content": text}
    assert quoted is None or quoted == {"role": "assistant", "content": f"Write {text}"}
    assert "<assistant>" in prompt
