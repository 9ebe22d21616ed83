"""Tests of malicious templates: none escapes the sandbox or exceeds its time or memory.

If a bound on time does not hold, a test never ends.
"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import ModelFormatError, NpurtError
from npurt.llm.text import sandbox
from npurt.llm.text.chat import ChatTemplate

HELLO = [{"role": "user", "content": "Hello"}]


def render(source):
    return ChatTemplate(source, bos="<s>", eos="</s>").render(HELLO)


def grow(step, start="'aaaaaaaaaa'", rounds=80):
    """Return a template that applies *step* to ns.x many times and then prints ns.x."""
    return (
        f"{{% set ns = namespace(x={start}, y={start}) %}}{{% for i in range({rounds}) %}}"
        f"{step}{{% endfor %}}{{{{ ns.x }}}}"
    )


def times(n, body):
    return f"{{% for i in range({n}) %}}{body}{{% endfor %}}"


SLOW = {
    "a range of a billion": times("10**9", "a"),
    "a range beyond 64 bits": times("10**30", "a"),
    "loops in loops": times(100_000, times(100_000, "")),
    "a loop over what never passes": times(
        100_000, "{% for j in range(100000) if false %}{% endfor %}"
    ),
    "a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}"
    "{% endif %}{% endmacro %}{{ f(60) }}",
    "a block that calls itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a caller that calls": "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}"
    "{% call f() %}{{ g() }}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
    "a recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "a power of a power": "{{ 2 ** 3000 ** 3000 }}",
    "a large power": "{{ 2 ** 100000000 }}",
    "squares of squares": grow("{% set ns.x = ns.x * ns.x %}", "3"),
    "a digit string": "{{ ('1' * 10**6) | int(base=16) }}",
    "comparing lists of lists": grow(
        "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}", "[1]"
    ).replace("{{ ns.x }}", "{{ ns.x == ns.y }}"),
    "hashing tuples of tuples": grow("{% set ns.x = (ns.x, ns.x) %}", "(1,)").replace(
        "{{ ns.x }}", "{{ {ns.x: 1} }}"
    ),
    "hashing them behind a generator": grow("{% set ns.x = (ns.x, ns.x) %}", "(1,)").replace(
        "{{ ns.x }}", "{{ [ns.x] | select | unique | list | length }}"
    ),
    "hashing what a macro packed": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}"
    "{% else %}{{ [varargs] | select | unique | list }}{% endif %}{% endmacro %}{{ m(60, 1) }}",
    "searching from behind": "{% set x = 'a' * 500000 %}{% set y = 'b' ~ 'a' * 200000 %}"
    + times(1000, "{{ x.rfind(y) }}"),
    "searching a range for text": times(100_000, "{{ 'x' in range(100000) }}"),
    "sorting again and again": times(100_000, "{{ range(100000) | sort | length }}"),
    "splitting again and again": "{% set x = 'a ' * 100000 %}"
    + times(100_000, "{{ x.split()[0] }}"),
    "generators in generators": grow(
        "{% set ns.x = ns.x | map('abs') %}", "range(9)", 5000
    ).replace("{{ ns.x }}", "{{ ns.x | list }}"),
}
LARGE = {
    "a width in percent": "{{ '%9999999s' % 'a' }}",
    "a width from a value": "{{ '%*d' % (9999999, 1) }}",
    "a precision": "{{ '%.9999999f' % 1.0 }}",
    "a centre": "{{ 'a' | center(10**9) }}",
    "a batch": "{{ [1] | batch(10**9, 'x') | list }}",
    "slices": "{{ [1] | slice(10**9) | list }}",
    "wrapped lines": "{{ ('x ' * 50000) | wordwrap(1, True, 'y' * 10000) }}",
    "a sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) }}",
    "many fields": "{{ ('%s' * 10000) % (('x' * 10000,) * 10000) }}",
    "a date": "{{ strftime_now('%1270d' * 100000) }}",
    "a date of many fields": "{{ strftime_now('%999d' * 100000) }}",
    "a date with flags": "{{ strftime_now('%_^-0#9999999c') }}",
    "a repeated text": "{{ 'a' * 10**10 }}",
    "a repetition of text": "{{ 10**10 * 'a' }}",
    "a repeated list": "{{ [0] * 10**10 }}",
    "repeated repetition": grow("{% set ns.x = ns.x * 10 %}"),
    "doubling with +": grow("{% set ns.x = ns.x + ns.x %}"),
    "doubling with ~": grow("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling lists with +": grow("{% set ns.x = ns.x + ns.x %}", "[1]"),
    "doubling in a block": grow("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "doubling in a macro": "{% macro f(x, n) %}{% if n %}{{ f(x ~ x, n - 1) }}{% endif %}"
    "{% endmacro %}{{ f('aaaaaaaaaa', 80) }}",
    "growing with upper": grow("{% set ns.x = (ns.x ~ ns.x) | upper %}", "'ß'"),
    "growing with replace": grow("{% set ns.x = ns.x | replace('a', 'aa') %}"),
    "growing with the method replace": grow("{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "growing with an empty replace": grow("{% set ns.x = ns.x | replace('', ns.x) %}"),
    "growing with join": grow("{% set ns.x = [ns.x, ns.x] | join(ns.x) %}"),
    "growing with the method join": grow("{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    "growing with format": grow("{% set ns.x = '{0}{0}{0}'.format(ns.x) %}"),
    "growing with tojson": grow("{% set ns.x = [ns.x, ns.x] | tojson %}"),
    "growing with indent": grow("{% set ns.x = (ns.x ~ '\n' ~ ns.x) | indent(900) %}"),
    "growing with filter blocks": "{% filter replace('a', 'a' * 99999) %}"
    + "a" * 9999
    + "{% endfilter %}",
    "a long text in loops": times(100_000, times(100_000, "x" * 1000)),
    "a long text in a set block": "{% set y %}" + times(100_000, "x" * 9999) + "{% endset %}",
    "lists of lists, written": grow("{% set ns.x = [ns.x, ns.x] %}", "[1]"),
    "lists of lists, as JSON": grow("{% set ns.x = [ns.x, ns.x] %}", "[1]").replace(
        "{{ ns.x }}", "{{ ns.x | tojson }}"
    ),
    "dicts of dicts, joined": grow("{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{}").replace(
        "{{ ns.x }}", "{{ ns.x ~ '' }}"
    ),
    "JSON of deep lists, indented": grow(
        "{% set ns.x = [ns.x] %}", "range(50000) | list", 500
    ).replace("{{ ns.x }}", "{{ ns.x | tojson(indent=900) }}"),
    "slices of a long text": "{% set x = 'a' * 100000 %}"
    + "".join(f"{{% set x{i} = x[1:] %}}" for i in range(400)),
    "parts of a long text": "{% set x = 'a' * 500000 %}" + times(100_000, "{{ x | list }}"),
    **{
        f"a million characters by {step}": grow("{% set ns.x = ns.x ~ ns.x %}", "'日'", 22).replace(
            "ns.x }}", f"{step} }}}}"
        )
        for step in (
            *("ns.x | list", "ns.x | select | list", "ns.x | sort | length", "ns.x | join(',')"),
            *("ns.x | unique | list", "ns.x.split('日')", "','.join(ns.x)", "ns.x.split() | list"),
            *(
                "(ns.x | replace('日', ' 日')).split()",
                "(ns.x | replace('日', '\\n')).splitlines()",
            ),
            *("dict(*ns.x)", "ns.x | default(*ns.x)", "ns.x | map('upper') | list"),
        )
    },
    "a wide field": "{{ '{:>1000000000}'.format('a') }}",
    "a field of a given width": "{{ '{:{w}}'.format('a', w=10**9) }}",
    "a precise number": "{{ '{:.1000000000f}'.format(1.0) }}",
    "a wide % field": "{{ '%1000000000d' % 1 }}",
    "a wide % field by filter": "{{ '%1000000000d' | format(1) }}",
    "a wide indentation": "{{ 'a\nb' | indent(10**9) }}",
    "a wide JSON indentation": "{{ [1] | tojson(indent=10**9) }}",
    "a long JSON separator": "{{ (range(9999) | list) | tojson(separators=('x' * 99999, ':')) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "the method center": "{{ 'a'.center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "round": "{{ 1 | round(-10**9) }}",
    "lorem ipsum": "{{ lipsum(10**6) }}",
    "batches": "{{ [1] | batch(10**9, 'x') | list }}",
}
SOURCES = {
    "parentheses": "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
    "lists in lists": "{{ " + "[" * 9000 + "]" * 9000 + " }}",
    "a long sum": "{{ 1" + " + 1" * 9000 + " }}",
    "a chain of filters": "{{ 1" + " | abs" * 9000 + " }}",
    "a chain of calls": "{{ a" + "()" * 20_000 + " }}",
    "nots": "{{ " + "not " * 9000 + "1 }}",
    "nested ifs": "{% if a %}" * 3000 + "{% endif %}" * 3000,
    "nested loops": "{% for a in b %}" * 40 + "{% endfor %}" * 40,
    "elifs": "{% if a %}" + "{% elif a %}" * 5000 + "{% endif %}",
    "a long number": "{{ " + "9" * 60_000 + " }}",
    "open comments": "{#" * 30_000,
    "open text": "{{ '" + "a" * 60_000,
}


@pytest.mark.parametrize("source", [*SLOW.values(), *SOURCES.values()], ids=[*SLOW, *SOURCES])
def test_a_template_that_would_take_for_ever_is_stopped(source, monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    with pytest.raises(ModelFormatError):
        render(source)


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_that_would_fill_the_memory_is_stopped(source):
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError):
            render(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    # The budget is 2^24 characters of up to 4 bytes; joining them makes a second copy.
    assert peak < 2 * 4 * 2**24


ESCAPES = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by index": "{{ ''['__class__']['__mro__'] }}",
    "classes by filter": "{{ '' | attr('__class__') }}",
    "classes by map": "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "classes by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "globals of a function": "{{ raise_exception.__globals__['os'] }}",
    "globals of a class": "{{ cycler.__init__.__globals__['os'] }}",
    "globals of a namespace": "{{ namespace.__init__.__globals__['os'] }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__['os'] }}",
    "globals of the template": "{{ self.__init__.__globals__['os'] }}",
    "the frame of a generator": "{{ ([1] | map('abs')).gi_frame.f_globals['os'] }}",
    "the environment of a loop": "{% for i in [1] %}{{ loop._recurse.x }}{% endfor %}",
    "a list's append": "{{ messages.append(1) }}",
    "a dict's update": "{{ messages[0].update(role='system') }}",
    "a dict's pop": "{{ messages[0].pop('role') }}",
    "a dict type's fromkeys": "{{ dict.fromkeys([1]) }}",
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_a_template_does_not_get_out(source):
    with pytest.raises(ModelFormatError):
        render(source)


def test_messages_are_the_callers_and_stay_as_they_are():
    messages = [{"role": "user", "content": "Hello"}]
    template = ChatTemplate("{% set messages = [] %}{{ messages }}", bos="", eos="")

    assert template.render(messages) == "[]"
    assert messages == [{"role": "user", "content": "Hello"}]


parts = st.sampled_from(
    [
        *("{% for x in range(9) %}", "{% endfor %}", "{% if x %}", "{% endif %}", "{% break %}"),
        *("{% set x = x ~ x %}", "{% set x = [x, x] %}", "{% set x = x * 99 %}", "{{ x }}"),
        *(
            "{% macro m(x) %}",
            "{% endmacro %}",
            "{{ m(x) }}",
            "{{ x | tojson }}",
            "{{ x.split() }}",
        ),
        *("{% set ns = namespace(x=x) %}", "{% set ns.x = [ns.x, x] %}", "{{ ns.x | string }}"),
        *(
            "{{ x | map('string') | list }}",
            "{{ loop.index }}",
            "{{ '{}'.format(x) }}",
            "text",
            "{%",
        ),
    ]
)


@given(st.lists(parts, max_size=30).map("".join))
def test_any_source_is_rendered_or_refused(source):
    try:
        prompt = render(source)
    except NpurtError:
        return
    assert isinstance(prompt, str)
