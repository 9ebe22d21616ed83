"""Fuzz chat templates: random Jinja programs have bounded time and memory, and no side effects."""

import os
import sys

import jinja2.debug  # noqa: F401  # jinja2 imports it when a template fails

from npurt.llm.text import sandbox
from npurt.llm.text.chat import ChatTemplate
from tests.fuzz import jsons

RUNS = 500
SECONDS = 10  # of which two are the template's own
SECRET = "canary-7c1e"

NAMES = ("messages", "tools", "m", "x", "y", "ns", "loop", "bos_token", "eos_token", "f", "g",
         "add_generation_prompt", "nothing", "self", "caller", "varargs", "kwargs")  # fmt: skip
CALLS = ("range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now", "f",
         "g", "caller", "lipsum", "super", "loop", "loop.cycle", "loop.changed")  # fmt: skip
# Some words of each kind do not exist in the sandbox, or must not exist.
FILTERS = """
    abs capitalize count d default dictsort first float indent int items join last length list
    lower map max min reject rejectattr replace reverse safe select selectattr sort string title
    tojson trim unique upper
"""
UNKNOWN_FILTERS = "attr batch escape format groupby pprint random round slice sum urlencode xmlattr"
TESTS = """
    boolean callable defined divisibleby eq even filter float ge gt in integer iterable le lt
    mapping ne none number odd sameas sequence string test true undefined upper
"""
ATTRIBUTES = """
    role content name index index0 first last length previtem nextitem a x ns __class__ __mro__
    __globals__ __init__ __subclasses__ __dict__ _TemplateReference__context gi_frame func_code mro
    format_map __add__ current reset next environment meter
"""
REFUSED = (
    "{% break %}", "{% continue %}", "{% include 'x' %}", "{% import 'x' as y %}",
    "{% extends x %}", "{% autoescape true %}x{% endautoescape %}", "{%- do x -%}",
)  # fmt: skip
PRELUDE = (
    "{% set ns = namespace(a=1) %}{% set x = messages %}{% set y = 'ab ' * 9 %}"
    "{% macro f(x, y=1) %}{{ x }}{{ caller() if caller }}{% endmacro %}"
    "{% macro g() %}{{ varargs }}{% endmacro %}"
)
OPERATORS = "+ + - * * / // % ** ~ ~ == != < > <= >= and or in"
NUMBERS = (0, 1, 2, 3, 7, -1, 64, 999, 1000, 4096, 1 << 20, 10**9, 1 << 64, 10**30, 0.5, 1e308)
TEXTS = ("''", "'a'", "'ab '", "'{}'", "'{0.__class__}'", "'{:>999}'", "'{:>99999}'", "'%s'",
         "'%999999s'", "'x' * 1000", "'<|im_start|>'", "'\\n'", "'\u00fc'")  # fmt: skip


def mutate(rng):
    program = Program(rng)
    source = PRELUDE * (rng.random() < 0.9) + program.block(rng.randrange(1, 5))
    if rng.random() < 0.05:
        source = rng.choice(("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for" * 300,
                             "{{ " + "-" * 20000 + "1 }}", "{% if x %}" * 2000, "{{ [" * 3000,
                             "{{ " + "x|" * 9000 + "x }}", "{#" * 9000))  # fmt: skip
    if rng.random() < 0.05 and source:
        at = rng.randrange(len(source))
        source = source[:at] + rng.choice(("", "}", "%}", "{{", "'", "\x00")) + source[at + 1 :]
    messages = [{"role": "user", "content": "Hello " * rng.choice((0, 1, 200))},
                {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
                {"role": "user", "content": [{"type": "text", "text": "ü"}]}]  # fmt: skip
    if rng.random() < 0.1:
        messages = jsons.changed(rng, messages, 2)
    return {"source": source, "messages": messages, "tools": rng.choice((None, [{"a": 1}]))}


def word(rng, words):
    return rng.choice(words.split())


class Program:
    """Builds a random template of nested parts."""

    def __init__(self, rng):
        self.rng = rng
        self.left = rng.choice((10, 40, 150))  # parts
        self.growing = False

    def filter(self):
        return word(self.rng, FILTERS if self.rng.random() < 0.95 else UNKNOWN_FILTERS)

    def block(self, depth):
        return "".join(self.statement(depth) for _ in range(self.rng.randrange(1, 4)))

    def statement(self, depth):
        self.left -= 1
        rng, e = self.rng, self.expression
        if depth <= 0 or self.left < 0:
            return rng.choice(("text", "{{ x }}", f"{{{{ {e(1)} }}}}"))
        inner = self.block(depth - 1)
        name = rng.choice(("x", "y", "m", "ns"))
        return rng.choice((
            f"{{{{ {e(depth)} }}}}",
            f"{{{{ {e(depth)} }}}}",
            f"{{% set {name} = {e(depth)} %}}",
            f"{{% set {name} %}}{inner}{{% endset %}}",
            f"{{% set ns.a = {e(depth)} %}}",
            self.growth(),
            self.growth(),
            f"{{% for {name} in {self.many(depth)} %}}{inner}{{% endfor %}}",
            f"{{% for {name} in {self.many(depth)} %}}{inner}{{% endfor %}}",
            f"{{% for {name} in {self.many(depth)} if {e(1)} %}}{inner}{{% else %}}-{{% endfor %}}",
            f"{{% for {name} in {self.many(depth)} recursive %}}{inner}{{{{ loop({e(1)}) }}}}"
            "{% endfor %}",
            f"{{% if {e(depth)} %}}{inner}{{% elif {e(1)} %}}e{{% else %}}{inner}{{% endif %}}",
            f"{{% macro {rng.choice('fg')}(x, y={e(1)}) %}}{inner}{{% endmacro %}}",
            f"{{% call f({e(1)}) %}}{inner}{{% endcall %}}",
            f"{{% filter {self.filter()} %}}{inner}{{% endfilter %}}",
            f"{{% with x = {e(1)} %}}{inner}{{% endwith %}}",
            f"{{% block b{self.left % 1000} %}}{inner}{{% endblock %}}",
            f"{{% generation %}}{inner}{{% endgeneration %}}",
            rng.choice(REFUSED) if rng.random() < 0.1 else "{% raw %}{{{% endraw %}{# c #}",
        ))  # fmt: skip

    def growth(self):
        """Return a loop that repeatedly computes a value from itself."""
        self.growing = True
        start, step = self.rng.choice((*NUMBERS, *TEXTS, "['a']")), self.expression(1)
        self.growing = False
        rounds = self.rng.choice((9, 60, 5000))
        return (
            f"{{% set ns = namespace(a={start}) %}}{{% for m in range({rounds}) %}}"
            f"{{% set ns.a = {step} %}}{{% endfor %}}{{{{ ns.a|string|length }}}}"
        )

    def many(self, depth):
        """Return an iterable expression, often a long one."""
        return self.rng.choice(("messages", "messages", "range(3)", "range(99999)", "range(10**9)",
                                "x", "'abc' * 999", self.expression(depth - 1)))  # fmt: skip

    def expression(self, depth):
        self.left -= 1
        rng = self.rng
        if depth <= 0 or self.left < 0:
            if self.growing and rng.random() < 0.7:
                return "ns.a"
            return str(rng.choice((rng.choice(NAMES), rng.choice(NUMBERS), rng.choice(TEXTS))))
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        attribute, method = word(rng, ATTRIBUTES), word(rng, sandbox.TEXT_METHODS)
        return rng.choice((
            f"({a} {word(rng, OPERATORS)} {b})",
            f"({a} {word(rng, OPERATORS)} {b})",
            f"({a})|{self.filter()}",
            f"({a})|{self.filter()}({b})",
            f"({a})|map({self.filter()!r})|list",
            f"({a})|map(attribute={attribute!r})|list",
            f"({a})|{rng.choice(('select', 'reject'))}({word(rng, TESTS)!r}, {b})|list",
            f"(({a}) is {rng.choice(('', 'not '))}{word(rng, TESTS)})",
            f"({a}).{attribute}",
            f"({a})[{b}]",
            f"({a})[{attribute!r}]",
            f"({a})[{rng.choice(('', '-9', '1'))}:{rng.choice(('', '999999'))}:{rng.choice('12')}]",
            f"({a}).{method}()",
            f"({a}).{method}({b})",
            f"({a}).{method}({b}, {rng.choice(TEXTS)})",
            f"{rng.choice(CALLS)}({a})",
            f"{rng.choice(CALLS)}({a}, x={b})",
            f"{rng.choice(CALLS)}(*{a}, **{{'a': {b}}})",
            f"[{a}, {b}, {a}]",
            f"({a}, {b})",
            f"{{'a': {a}, {rng.choice(TEXTS)}: {b}}}",
            f"({a} if {b} else {a})",
            f"(not {a})",
            f"namespace(a={a})",
        ))  # fmt: skip


class Watch:
    """Fails if the code inside opens files, starts programs or reads data of the system."""

    forbidden = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "marshal.")
    on = False
    seen: list = []  # noqa: RUF012  # one hook, which stays

    def __enter__(self):
        if not hasattr(Watch, "hook"):
            Watch.hook = True
            sys.addaudithook(Watch.note)
        Watch.seen, Watch.on = [], True

    def __exit__(self, *error):
        Watch.on = False

    @staticmethod
    def note(event, arguments):
        if Watch.on and event.startswith(Watch.forbidden):
            Watch.seen.append(event)


def run(value):
    os.environ["NPURT_CANARY"] = SECRET
    template = ChatTemplate(value["source"], bos="<s>", eos="</s>")
    with Watch():
        said = ""
        try:
            said = template.render(value["messages"], tools=value["tools"])
        finally:
            Watch.on = False
            assert Watch.seen == [], f"the template reached {Watch.seen}"
    assert SECRET not in said
    return "rendered"


def unpaid_repetition():
    """Do not charge for repeated strings and lists."""
    sandbox.Meter.made = lambda self, value: value
    del sandbox.BoundedEnvironment.call_binop


PLANTED = {"unpaid repetition": unpaid_repetition}
