"""Tests of chat templates: prompts equal those of transformers' jinja2; bad input is refused."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2.ext
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from npurt.errors import LayoutError, ModelFormatError
from npurt.llm.text.chat import MAX_SOURCE, ChatTemplate
from tests.limits import HANG_SECONDS

ORACLE = json.loads(
    (Path(__file__).parents[1] / "data/chat/rendered.json").read_text(encoding="utf-8")
)
HELLO = [{"role": "user", "content": "Hello"}]
# The template of SmolLM2-135M-Instruct.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source, messages=HELLO, **given):
    return ChatTemplate(source, bos="<s>", eos="</s>").render(messages, **given)


# The template reads no tools, which transformers leaves out and npurt describes: test_tool_prompt.
@pytest.mark.parametrize(
    "conversation", [name for name, given in ORACLE["inputs"].items() if not given.get("tools")]
)
def test_smollm2_prompts_are_those_of_transformers(conversation):
    expected = ORACLE["rendered"]["GGUF:SmolLM2-135M-Instruct"][conversation]
    assert render(SMOLLM2, **ORACLE["inputs"][conversation]) == expected


# --- Equal to jinja2 ------------------------------------------------------------------------------

STATEMENTS = (
    "{% if true %}\n  a\n{% endif %}\n  {%- set x = 1 -%}  b\n\n",
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] | trim }}{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content }}{{ loop.index }}{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 5 %}{% break %}"
    "{% endif %}{{ i }}{% endfor %}",
    "{% for x in [[1, []], [2, []]] recursive %}{{ x[0] }}{{ loop(x[1]) }}{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.s = ns.s ~ m.role ~ ns.n %}{% endfor %}{{ ns.s }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ f(1) }}{{ f(1, 3, 4, k=5) }}",
    "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f('a') %}{{ y }}!{% endcall %}",
    "{% block b %}in {{ messages | length }}{% endblock %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}",
    "{% filter replace('a', 'bb') %}banana{% endfilter %}",
    "{% for k, v in tools[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{% set j = joiner(', ') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{% raw %}{{ x }}{% endraw %}{# comment #}",
    "{{ nothing }}{{ messages[0].nothing }}{% if tools[0].nope %}x{% endif %}",
)
EXPRESSIONS = (
    # filters with a cost of their own
    "'<a> é' | e ~ ('<b>' | escape) ~ ('c' | forceescape)",
    "'%s=%05.2f%%' % ('a', 3.14159) ~ ('%(k)s' | format(k=1)) ~ '%-5s|' % 'a'",
    "3.14159 | round(2) ~ (3.2 | round(0, 'ceil'))",
    "[1, 2, 3] | sum ~ ([{'a': 1}, {'a': 5}] | sum(attribute='a'))",
    "[1, 2, 3] | batch(2, 'x') | list ~ ([1, 2, 3, 4, 5] | slice(2) | list)",
    "'abc' | center(9) ~ (123456 | filesizeformat) ~ ('a b  c' | wordcount)",
    "messages | groupby('role') | length ~ ({'a': [1]} | pprint) ~ ([7] | random)",
    "'<p>a <b>c</b>' | striptags ~ ('a b c d' | truncate(5, True, '.', 0)) ~ ('a b' | urlencode)",
    "'see https://x.org' | urlize ~ ('aa bb cc' | wordwrap(3)) ~ ({'a': 'b'} | xmlattr)",
    "messages[0] | attr('content') is defined",
    # text
    "' a b '.strip()",
    "'a,b'.split(',')",
    "'abc'.replace('b', 'x', 1)",
    "'x'.join(['a', 'b'])",
    "'abc'.startswith('a') and 'abc'.endswith(('c', 'd'))",
    "'a</t>b'.split('</t>')[-1].lstrip()",
    "'abcabc'.rfind('b')",
    "'a-b-c'.rsplit('-', 1)",
    "'a b'.title() ~ 'aXb'.lower() ~ 'ß'.upper()",
    "'{} and {name:>5}'.format(1.5, name='x')",
    "'{0[1]} {{}}'.format([1, 2])",
    # containers
    "messages[::-1][0].role",
    "messages[1:] | length",
    "'abc'[:-1]",
    "(1, 2, 3)[1]",
    "tools[0].get('x', 3)",
    "tools[0].keys() | list",
    "{'a': {'b': 1}}.a.b",
    "dict(a=1)",
    "{(1, 2): 3}[1, 2]",
    "range(2, 8, 3) | list",
    # filters
    "[3, 1, 2] | sort",
    "[{'n': 2}, {'n': 1}] | sort(attribute='n')",
    "[1, 1, 2] | unique | list",
    "['a', 1] | join('-')",
    "[{'n': 2}] | join('', attribute='n')",
    "[1, 2] | first ~ [1, 2] | last ~ [1, 2] | max ~ [1, 2] | min",
    "'a' | upper ~ 'A' | lower ~ 'aa' | capitalize ~ 'a b' | title",
    "nothing | default('d') ~ '' | default('d', true)",
    "'3' | int + 1",
    "'3.5' | float",
    "messages | map(attribute='role') | join(',')",
    "['a'] | map('upper') | list",
    "messages | selectattr('role', 'equalto', 'user') | list | length",
    "messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | list",
    "[1, none, 2] | select | list",
    "[1, 2, 3] | reject('odd') | list",
    "'a\nb' | indent(2)",
    "'a\n\nb' | indent('> ', true, true)",
    "{'a': 1} | items | list",
    "tools[0] | dictsort",
    "'x' | string | safe",
    "'ab' | reverse",
    "-3 | abs",
    "tools | tojson",
    "tools[0] | tojson(indent=2)",
    "{'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':'))",
    "'<é&\\'' | tojson",
    "'é' | tojson(ensure_ascii=true)",
    # tests
    "1 is defined and x is undefined and none is none and 1 is not none",
    "'a' is string and {} is mapping and [] is sequence and 'a' is iterable",
    "true is boolean and 1 is number and 2 is even and 1 is in [1] and false is false",
    # operators
    "2 ** 3 ~ 2 ** 0.5 ~ 7 // 2 ~ 7 % 4 ~ 7 / 2 ~ 2.5 * 2",
    "'=' * 5 ~ 3 * '-'",
    "[1] + [2] + [0] * 2",
    "1 < 2 <= 2",
    "'a' in 'abc' and 3 not in [1, 2]",
    "'y' if 1 else 'n'",
    "'a' ~ 1 ~ none",
    "messages[0] == messages[0] and messages[0] != messages[1]",
    "not true or false",
)
GIVEN = {
    "messages": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hi <b>&\"' é"},
        {"role": "assistant", "content": "Hello!"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [1, None]}}}],
    "add_generation_prompt": True,
}


def as_transformers(source, given):
    """Render as transformers' chat_template_utils.py does, without limits."""

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    return environment.from_string(source).render(bos_token="<s>", eos_token="</s>", **given)


@pytest.mark.parametrize("source", [*STATEMENTS, *(f"{{{{ {e} }}}}" for e in EXPRESSIONS)])
def test_what_templates_use_means_what_it_means_in_jinja2(source):
    source += "{% if tools %}{% endif %}"  # otherwise npurt adds a text about the tools
    assert render(source, **GIVEN) == as_transformers(source, GIVEN)


def test_generation_marks_have_no_effect():
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"


def test_the_date_is_that_of_the_clock():
    assert render("{{ strftime_now('%d %b %Y') | length }}") == "11"


contents = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), contents), min_size=1))
def test_any_conversation_comes_through_unchanged(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = "".join(f"<{role}>{content}" for role, content in turns)

    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    assert render(source, messages) == expected


def test_a_long_conversation_is_not_taken_for_an_attack():
    turn = {"role": "user", "content": "word " * 100}
    messages = [turn, turn | {"role": "assistant"}] * 500  # half a million characters
    source = (
        "{% set ns = namespace(all=[], text='') %}{% for m in messages %}"
        "{% set ns.all = ns.all + [m] %}{% set c = m.content | trim %}"
        "{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}"
        "{% if m == messages[-1] or messages[loop.index0 - 1].role == m.role %}!{% endif %}"
        "{{ '<' + m.role + '>' + c }}{% endfor %}{{ ns.all | length }}"
    )
    text = ChatTemplate(source, bos=None, eos=None).render(messages)

    assert text.endswith("1000")
    assert len(text) > 500_000


def test_variables_reach_the_template():
    source = (
        "{{ enable_thinking }}{{ tools is none }}{{ add_generation_prompt }}{{ other is defined }}"
    )

    assert render(source, enable_thinking=False) == "FalseTrueTrueFalse"
    assert render(source, add_generation_prompt=False, tools=[]) == "TrueTrueFalseFalse"


def test_a_rendering_does_not_wait_for_that_of_another_thread(monkeypatch):
    began, go_on = threading.Event(), threading.Event()

    def wait(format):
        began.set()
        return str(go_on.wait(HANG_SECONDS))

    monkeypatch.setattr("npurt.llm.text.chat._strftime_now", wait)
    source = "{% if messages[0].content == 'wait' %}{{ strftime_now('') }}{% endif %}done"
    template = ChatTemplate(source, bos="", eos="")
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(template.render, [{"role": "user", "content": "wait"}])
        assert began.wait(HANG_SECONDS)
        quick = threads.submit(template.render, [{"role": "user", "content": "hello"}])
        assert quick.result(HANG_SECONDS) == "done"
        assert not slow.done()
        go_on.set()
        assert slow.result(HANG_SECONDS) == "Truedone"


def test_templates_may_be_shared_by_threads():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", bos="", eos="")
    results = {}

    def work(i):
        for _ in range(50):
            results.setdefault(i, set()).add(
                template.render([{"role": "user", "content": str(i)}] * 20)
            )

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == {i: {str(i) * 20} for i in range(4)}


# --- Refusals -------------------------------------------------------------------------------------

MALFORMED = {
    "nothing": [],
    "none": None,
    "text": "hello",
    "one message": {"role": "user", "content": "a"},
    "a text among them": ["hello"],
    "no role": [{"content": "a"}],
    "a role that is a number": [{"role": 1, "content": "a"}],
    "no content": [{"role": "user"}],
    "content that is None": [{"role": "user", "content": None}],
    "content that is a number": [{"role": "user", "content": 1}],
    "parts that are text": [{"role": "user", "content": ["a"]}],
    "bytes": [{"role": "user", "content": b"a"}],
    "an object": [{"role": "user", "content": object()}],
    "tool calls that are text": [{"role": "assistant", "content": "", "tool_calls": "f()"}],
    "a call's function that is text": [{"role": "assistant", "tool_calls": [{"function": "f"}]}],
}


@pytest.mark.parametrize("messages", MALFORMED.values(), ids=MALFORMED)
def test_malformed_messages_are_refused(messages):
    with pytest.raises(LayoutError) as caught:
        render("{{ messages }}", messages)

    assert caught.value.remedy


def test_messages_that_hold_themselves_are_refused():
    message = {"role": "user", "content": []}
    message["content"].append(message)
    with pytest.raises(LayoutError):
        render("{{ messages }}", [message])


def test_a_call_without_content_is_a_message():
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]

    assert render("{{ messages[1].tool_calls[0].function.arguments.a }}", messages) == "1"


def test_what_a_template_refuses_is_said_in_its_words():
    with pytest.raises(LayoutError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


BROKEN = {
    "syntax": "{% if %}",
    "an unclosed block": "{% for m in messages %}",
    "an unknown filter": "{{ 1 | nope }}",
    "an unknown test": "{{ 1 is nope }}",
    "an undefined function": "{{ nope() }}",
    "an undefined attribute's attribute": "{{ nope.nope }}",
    "a division by 0": "{{ 1 // 0 }}",
    "a wrong type": "{{ 'a' + 1 }}",
    "a wrong index": "{% set a, b = [1] %}",
    "an include": "{% include 'x' %}",
    "an import": "{% import 'x' as x %}",
    "a parent": "{% extends 'x' %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "too long": " " * (MAX_SOURCE + 1),
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_a_broken_template_is_refused(source):
    with pytest.raises(ModelFormatError) as caught:
        render(source)

    assert caught.value.remedy
    assert len(caught.value.what) < 1000
