"""Run an untrusted Jinja template with bounded time and memory.

jinja2's sandbox prevents access to Python's internals, but it permits endless loops and strings of
a terabyte.  This sandbox charges every operation that takes time or creates a value to one budget.
If a small expression can create a large value, the charge precedes the creation.  Charges apply to:

- each iteration of a loop and each call of a macro, block, function, filter or test, with its text;
- text and lists that are written, sliced, listed, concatenated, replaced, joined, repeated,
  indented or formatted;
- a nested value that is written out, compared or hashed, by its size when written out.  No value
  may be larger than the budget: twenty lists, each of which contains the previous list twice, have
  a million elements when written out.

The work between two charges is linear in the size of values already charged.  The budget also ends
after `SECONDS` of this thread's CPU time.  Only listed filters, globals and methods of plain values
are available.  Includes, imports and inheritance are refused.  Python's recursion limit applies.
"""

import json
import re
import string
import threading
import time
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from functools import wraps
from typing import Any

import jinja2.ext
from jinja2 import Template, filters, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from npurt.llm.text import costly_filters
from npurt.llm.text.metering import STEP, add_metering

BUDGET = 1 << 24  # units; a character of output costs one
PER_INPUT = 64  # additional units for each character of the caller's variables
ELEMENT = 16  # units for each element of a list or dict
SECONDS = 2.0  # CPU time of the rendering thread
CLOCK_INTERVAL = 1 << 12  # units between two readings of the clock
MAX_INT_BITS = 1 << 12
MAX_WIDTH = 999  # characters of one indentation or formatted field

TEXT_METHODS = """
    capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit islower
    isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace
    rfind rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, frozenset(TEXT_METHODS.split())),
    (dict, frozenset({"get", "items", "keys", "values"})),
    ((list, tuple, int, float, range, type), frozenset()),
)
Filters = dict[str, Callable[..., Any]]
FIELD = re.compile(r"%(?:\([^)]*\))?([#0\- +]*[*\d]*(?:\.[*\d]*)?)")  # flags, width, precision
CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


class Meter:
    """The remaining budget of one rendering."""

    def __init__(self, budget: int) -> None:
        self._limit = self._left = budget
        self._look_at = budget - CLOCK_INTERVAL
        self._end = time.thread_time() + SECONDS
        # id(value) -> (value, size); holding the value keeps its id unique.
        self._weights: dict[int, tuple[Any, int]] = {}

    def charge(self, units: int) -> bool:
        """Charge *units* and return True, so that a condition can contain the call.

        Raises:
            SecurityError: The budget or the time is exhausted.
        """
        self._left -= units
        if self._left < self._look_at:
            self._look_at = self._left - CLOCK_INTERVAL
            if self._left < 0 or time.thread_time() > self._end:
                raise SecurityError(
                    "the template exceeds its budget: too many iterations or too much text"
                )
        return True

    def weight(self, value: Any) -> int:
        """Return the size of *value* when written out; templates cannot change values.

        Raises:
            SecurityError: The size is more than the whole budget.
        """
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, CONTAINERS):
            return 0
        if id(value) not in self._weights:
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            weight = ELEMENT * (1 + len(value)) + sum(map(self.weight, parts))
            if weight > self._limit:
                raise SecurityError("a list or dict that is too large when written out")
            self._weights[id(value)] = (value, weight)
        return self._weights[id(value)][1]

    def read(self, value: Any) -> Any:
        """Charge for writing out, comparing or hashing *value*, and return it."""
        self.charge(self.weight(value))
        return value

    def made(self, value: Any) -> Any:
        """Charge for creating *value* from existing parts, and return it."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, CONTAINERS):
            self.charge(ELEMENT * (1 + len(value)))
            self.weight(value)
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise SecurityError(f"an integer of more than {MAX_INT_BITS} bits")
        return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The jinja2 environment of chat templates, in which a `Meter` charges every operation.

    Several threads may render with one environment; each thread has its own `meter`.
    Source of the settings: transformers' chat_template_utils.py; the templates in llama.cpp's
    models/templates rely on them.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # compilation evaluates no part of the template
            finalize=_written,
            extensions=[jinja2.ext.loopcontrols, _Generation],
            cache_size=0,
        )
        self._of_thread = threading.local()
        self.filters = {}
        self.globals = {
            "range": safe_range,
            "dict": _dict,
            "namespace": _Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
        }
        own: Filters = {"indent": self._indent, "replace": self._replace, "tojson": self._tojson}
        own |= {"attr": self._attr, "format": self._format}
        more = self._paying(costly_filters.FILTERS)
        for table, reads, walks in (
            (PASSING, False, False),
            (WALKING, False, True),
            (READING | own | more, True, False),
            (ORDERING | {"join": self._join}, True, True),
        ):
            for name, function in table.items():
                self.filters[name] = self._metered(function, reads=reads, walks=walks)
        self.filters |= {
            "+step": self._step,
            "+made": self._made,
            "+read": self._read,
            "+walk": self._walk,
            "+join": self._join,
        }
        tests: dict[str, Any] = TESTS
        self.tests = {name: self._metered(test, reads=True) for name, test in tests.items()}

    @property
    def meter(self) -> Meter:
        """The meter of the rendering in this thread."""
        meter: Meter = self._of_thread.meter
        return meter

    @meter.setter
    def meter(self, meter: Meter) -> None:
        self._of_thread.meter = meter

    def build(self, source: str) -> Template:
        """Compile *source* with metering."""
        tree = add_metering(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse a method of a plain value that is not in `METHODS`."""
        for kind, names in METHODS:
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Charge for a call in the template, and execute it."""
        self.meter.charge(STEP + ELEMENT * (len(args) + len(kwargs)))
        weight = self._weight(args, kwargs)
        if not isinstance(obj, Macro):  # a macro receives its arguments unchanged
            self.meter.charge(weight)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            args = self._text_call(owner, obj.__name__, args)
        return self.meter.made(super().call(context, obj, *args, **kwargs))

    def _text_call(self, text: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Charge for calling *method* of *text*; return the arguments, with iterators as lists."""
        self.meter.charge(len(text))
        first = args[0] if args else None
        if method == "replace":
            self._pay_replace(text, *args)
        elif method == "join":
            parts = self.meter.read(list(self._walk(first)))
            self.meter.charge(len(text) * len(parts))
            return (parts,)
        elif method in ("rfind", "rpartition", "rsplit") and first:
            self.meter.charge(len(text) * len(first))  # CPython's reverse search is quadratic
        if method in ("split", "rsplit", "splitlines"):
            self.meter.charge(ELEMENT * (text.count(first) if first else len(text)))
        return args

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return ``str.format`` with a charge for every field and a limit on its width."""
        format_method = super().wrap_str_format(value)
        if format_method is None:
            return None

        @wraps(format_method)
        def paid(*args: Any, **kwargs: Any) -> str:
            weight = self._weight(args, kwargs)
            for _, name, spec, _ in string.Formatter().parse(value.__self__):
                if "{" in (spec or "") or re.search(r"\d{4}", spec or ""):
                    raise SecurityError(f"a field wider than {MAX_WIDTH}, or of unknown width")
                if name is not None:
                    self.meter.charge(weight + MAX_WIDTH)
            return format_method(*args, **kwargs)

        return paid

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Charge for the result of an operator; refuse operations whose result may be too large."""
        self.meter.charge(STEP)
        if operator == "%" and isinstance(left, str):
            return self.meter.made(self._percent(left, right))
        if operator == "**" and not _is_small_power(left, right):
            raise SecurityError(f"an integer of more than {MAX_INT_BITS} bits")
        if operator == "*" and isinstance(left, int):
            left, right = right, left
        if operator == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
            self.meter.charge(ELEMENT * len(left) * max(0, right))
        return self.meter.made(super().call_binop(context, operator, left, right))

    def charge_time_format(self, text: str) -> None:
        """Charge for a text of `strftime` with the format *text*, whose fields may have a width.

        Raises:
            SecurityError: A field is too wide, or the budget is exhausted.
        """
        if re.search(r"%[^%a-zA-Z]*\d{4}", text):
            raise SecurityError(f"a field of a date wider than {MAX_WIDTH}")
        self.meter.charge(len(text) + MAX_WIDTH * text.count("%"))

    def _weight(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return sum(map(self.meter.weight, (*args, *kwargs.values())))

    # Each rendering has its own meter, so filters look up the meter when they run.

    def _step(self, units: int) -> bool:
        return self.meter.charge(units)

    def _made(self, value: Any) -> Any:
        return self.meter.made(value)

    def _read(self, value: Any) -> Any:
        self.meter.charge(STEP)
        return value if isinstance(value, str) else self.meter.read(value)

    def _walk(self, value: Any) -> Any:
        """Charge for one object per character or element of *value*, and return *value*."""
        if isinstance(value, (str, range, *CONTAINERS)):
            self.meter.charge(ELEMENT * len(value))
        return value

    def _metered(
        self, function: Callable[..., Any], *, reads: bool, walks: bool = False
    ) -> Callable[..., Any]:
        """Return *function* with metering.

        Args:
            reads: The function reads its arguments.
            walks: The function may create a list of its arguments' elements.
        """

        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            weight = self._weight(args, kwargs)
            self.meter.charge(STEP + (weight if reads else 0))
            for arg in args if walks else ():
                self._walk(arg)
            return self.meter.made(function(*args, **kwargs))

        return paid

    def _join(self, value: Any, separator: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            value = map(filters.make_attrgetter(self, attribute), value)
        parts = self.meter.read(list(value))
        self.meter.charge(len(str(separator)) * len(parts))
        return str(separator).join(map(str, parts))

    def _pay_replace(self, text: str, old: str, new: str, count: int = -1) -> None:
        found = text.count(old)
        rounds = found if count < 0 else min(found, count)
        self.meter.charge(len(text) + rounds * len(new))

    def _replace(self, value: Any, old: str, new: str, count: int | None = None) -> str:
        text = str(value)
        self._pay_replace(text, old, new, -1 if count is None else count)
        return text.replace(old, new, -1 if count is None else count)

    def _paying(self, costly: Mapping[str, costly_filters.Costly]) -> Filters:
        """Return the filters of *costly*, which charge for their work before it."""

        def paying(cost: Callable[..., int], function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def paid(*args: Any, **kwargs: Any) -> Any:
                self.meter.charge(cost(self._weight(args, kwargs), *args, **kwargs))
                return function(*args, **kwargs)

            return paid

        return {name: paying(cost, function) for name, (cost, function) in costly.items()}

    def _attr(self, value: Any, name: str) -> Any:
        if str(name).startswith("_"):
            raise SecurityError(f"access to {name:.60}")
        return filters.do_attr(self, value, name)

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        return self._percent(str(value), kwargs or args)

    def _percent(self, text: str, values: Any) -> str:
        """Return ``text % values``; the width of a field must be a number of up to three digits."""
        fields = FIELD.findall(text)
        if any("*" in size or re.search(r"\d{4}", size) for size in fields):
            raise SecurityError(f"a field wider than {MAX_WIDTH}, or of unknown width")
        # A character is written as up to 10 characters, as in %a.
        self.meter.charge(len(text) + len(fields) * (10 * self.meter.weight(values) + MAX_WIDTH))
        made: str = text % values
        return made

    def _indent(
        self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        text = str(value)
        size = width if isinstance(width, int) else len(width)
        if size > MAX_WIDTH:
            raise SecurityError(f"an indentation of more than {MAX_WIDTH}")
        self.meter.charge((1 + len(text.splitlines())) * max(0, size))
        return filters.do_indent(text, width, first, blank)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return *value* as JSON.  Unlike jinja's filter, it does not escape markup."""
        if indent is not None and indent > MAX_WIDTH:
            raise SecurityError(f"an indentation of more than {MAX_WIDTH}")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return "".join(self.meter.made(chunk) for chunk in encoder.iterencode(value))


# Filters, grouped by their use of arguments.  PASSING filters return an argument or an element:
PASSING: Filters = {
    "abs": abs,
    "count": len,
    "d": filters.do_default,
    "default": filters.do_default,
    "first": filters.do_first,
    "last": filters.do_last,
    "random": filters.do_random,
    "length": len,
    "safe": lambda value: value,  # autoescape is off
}
# WALKING filters iterate over the elements:
WALKING: Filters = {
    "items": filters.do_items,
    "list": filters.do_list,
    "map": filters.do_map,
    "reject": filters.do_reject,
    "rejectattr": filters.do_rejectattr,
    "reverse": filters.do_reverse,
    "select": filters.do_select,
    "selectattr": filters.do_selectattr,
}
# READING filters convert arguments to text:
READING: Filters = {
    "capitalize": filters.do_capitalize,
    "float": filters.do_float,
    "int": filters.do_int,
    "lower": filters.do_lower,
    "string": str,
    "title": filters.do_title,
    "trim": filters.do_trim,
    "upper": filters.do_upper,
}
# ORDERING filters iterate over the elements and compare them:
ORDERING: Filters = {
    "dictsort": filters.do_dictsort,
    "groupby": filters.do_groupby,
    "max": filters.do_max,
    "min": filters.do_min,
    "sort": filters.do_sort,
    "unique": filters.do_unique,
}


def _is_small_power(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right <= MAX_INT_BITS
    return isinstance(left, int | float) and isinstance(right, int | float)


@pass_environment
def _written(environment: BoundedEnvironment, value: Any) -> Any:
    """Charge for a value that is about to be written out as text, and return it."""
    return environment.meter.read(value)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """Return a dict; unlike the type dict, this function has no methods such as fromkeys."""
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """A namespace whose repr omits its content, which may be large."""

    def __repr__(self) -> str:
        return "<namespace>"


class _Generation(jinja2.ext.Extension):
    """The tags ``{% generation %}...{% endgeneration %}``, which mark training targets.

    They have no effect on the prompt.
    """

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
