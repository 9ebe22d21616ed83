"""Tests of chat() options: the template gets those that it reads; unused options are refused."""

import inspect
import typing

import pytest

import npurt
from npurt.errors import LayoutError, SettingError, UnsupportedOp
from npurt.llm.decode.options import MISSING, Options
from npurt.llm.text.chat import ChatTemplate
from tests.llm.conftest import GREEDY, PROMPT, fresh, open_tiny

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if tools %}[{{ tools[0].function.name }}]{% endif %}"
    "{% if enable_thinking is defined %}(think {{ enable_thinking }}){% endif %}"
    "{% if not date is defined %}{% set date = 'today' %}{% endif %}{{ date }}"
)


@pytest.fixture(scope="module")
def reader():
    """Yield a model whose template reads tools, enable_thinking and date."""
    with open_tiny(chat_template=TEMPLATE) as llm:
        yield llm


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({}, "Hello(think True)today"),
        ({"tools": TOOLS}, "Hello[weather](think True)today"),
        ({"tools": None, "enable_thinking": None}, "Hello(think True)today"),
        ({"tools": []}, "Hello(think True)today"),
        ({"enable_thinking": False}, "Hello(think False)today"),
        ({"enable_thinking": True, "date": "1 May"}, "Hello(think True)1 May"),
        ({"response_format": None}, "Hello(think True)today"),
        ({"response_format": {"type": "text"}, "logprobs": None}, "Hello(think True)today"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_template_gets_what_it_reads(reader, options, prompt, stream):
    answer = reader.chat(HELLO, stream=stream, max_tokens=1, **options)

    assert isinstance(answer, str) is not stream
    list(answer)
    assert reader.history == tuple(reader.tokenize(prompt))


@pytest.mark.parametrize("options", [{"enable_thinking": False}, {"date": "1 May"}], ids=str)
def test_what_the_template_does_not_read_is_refused(llm, options):
    (name,) = options
    with pytest.raises(SettingError, match=f"does not read {name}") as caught:
        llm.chat(HELLO, max_tokens=1, **options)
    assert "leave it out" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "meant"), [("max_token", "max_tokens"), ("enable_thinkin", "enable_thinking")]
)
def test_a_misspelt_option_is_no_variable_of_the_template(reader, name, meant):
    with pytest.raises(SettingError, match=name) as caught:
        reader.chat(HELLO, **{name: 1})
    assert f"did you mean {meant}?" in caught.value.remedy


def test_the_variables_of_a_template_are_those_that_it_takes_from_its_caller():
    own = "{% set x = 1 %}{{ x }}{% macro f(y) %}{{ y }}{% endmacro %}{{ f(2) }}{{ bos_token }}"
    source = (
        own + "{{ strftime_now('%d') }}{{ raise_exception }}{% for m in messages %}{% endfor %}"
    )
    template = ChatTemplate(TEMPLATE + source, bos="", eos="")

    assert template.variables == {"messages", "tools", "enable_thinking", "date"}


@pytest.mark.parametrize("name", sorted(MISSING))
def test_what_npurt_does_not_have_is_refused_by_name(reader, name):
    for call in (lambda **o: reader.generate(PROMPT, **o), lambda **o: reader.chat(HELLO, **o)):
        with pytest.raises(UnsupportedOp, match=f"npurt does not have {name} yet") as caught:
            call(**{name: 3})
        assert caught.value.remedy == f"leave {name} out"
        for neutral in (None, MISSING[name]):
            call(max_tokens=0, **{name: neutral})


def test_zero_logprobs_are_logprobs(reader):
    reader.generate(PROMPT, logprobs=0, max_tokens=1)
    assert len(reader.timing.logprobs) == 1
    reader.generate(PROMPT, logprobs=False, frequency_penalty=0, n=1, max_tokens=1)
    assert reader.timing.logprobs == []


def test_messages_become_the_tokens_that_chat_continues(llm):
    ids = llm.apply_chat_template(HELLO)
    llm.chat(HELLO, max_tokens=1, temperature=0.0)

    assert tuple(ids) == llm.history
    short = llm.apply_chat_template(HELLO, add_generation_prompt=False)
    assert ids[: len(short)] == short
    assert len(short) < len(ids)
    with pytest.raises(SettingError, match="does not read date"):
        llm.apply_chat_template(HELLO, date="today")


@pytest.mark.parametrize("value", [{"type": "xml"}, {"type": "json_schema"}, "json", {}], ids=str)
def test_an_unknown_format_of_answers_is_refused(reader, value):
    with pytest.raises(SettingError, match="response_format is"):
        reader.chat(HELLO, response_format=value)


def test_an_unknown_argument_of_generate_is_a_type_error_as_in_python(llm):
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_token'"):
        llm.generate(PROMPT, max_token=5)


# --- Content in parts -----------------------------------------------------------------------------


def part(text):
    return {"type": "text", "text": text}


def test_text_in_parts_is_the_text(llm):
    answer = fresh(llm, llm.template.render(HELLO), max_tokens=5, **GREEDY)
    prompt = llm.history

    for content in ([part("Hel"), part("lo")], (part("Hello"),), [part("Hello"), part("")]):
        llm.reset()
        assert llm.chat([{"role": "user", "content": content}], max_tokens=5, **GREEDY) == answer
        assert llm.history == prompt


def test_messages_that_were_given_stay_as_they_were(llm):
    message = {"role": "user", "content": [part("a"), part("b")]}
    llm.chat([message], max_tokens=1)

    assert message == {"role": "user", "content": [part("a"), part("b")]}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "message 1 .*'image_url'"),
        ({"type": "input_audio"}, "'input_audio'"),
        ({"text": "no type"}, "type None"),
        ({"type": "text"}, "without text"),
        ({"type": "text", "text": 5}, "without text"),
    ],
)
def test_parts_that_are_no_text_are_refused_by_name(llm, wrong, said):
    with pytest.raises(LayoutError, match=said) as caught:
        llm.chat([*HELLO, {"role": "user", "content": [part("see"), wrong]}])
    assert "images" in caught.value.remedy


def test_every_overload_of_chat_has_the_options_of_generate():
    given = dict(inspect.signature(npurt.Llama.chat).parameters)
    assert list(given) == [
        "self", "messages", "stream", "tools", "enable_thinking", "n", "echo", "options"
    ]  # fmt: skip
    options = typing.get_type_hints(Options)
    overloads = typing.get_overloads(npurt.Llama.chat)
    assert len(overloads) == 4
    for each in overloads:
        parameters = inspect.signature(each).parameters
        names = [*list(given)[:-1], *options, "template_variables"]
        several = parameters["n"].annotation is int  # several texts are not streamed
        assert list(parameters) == [name for name in names if not (several and name == "stream")]
        hints = typing.get_type_hints(each)
        assert {name: hints[name] for name in options} == options
