"""Run a stranger's Jinja template with bounded time and memory.

jinja2's sandbox keeps a template from Python's internals; it does not keep it from looping for
ever or making a string of a terabyte.  Here all that takes time or makes a value is charged to one
budget, and before it is done wherever a small expression can make a large value:

- each round of a loop and each call of a macro, block, function, filter or test, with its text;
- what is written, sliced, listed, concatenated, replaced, joined, repeated, indented, formatted;
- a nested value whenever it is turned into text, compared or hashed, by its size written out:
  twenty lists, each holding the one before twice, stand for a million.

Between two charges lie only steps linear in values already paid for, and the budget also ends
with `SECONDS` of this thread's CPU time.  Filters, globals and methods of plain values are closed
lists; there are no includes, imports and inheritance.  Recursion ends at Python's own limit.
"""

import json
import re
import string
import time
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from functools import wraps
from typing import Any

import jinja2.ext
from jinja2 import Template, TemplateSyntaxError, filters, nodes, pass_environment
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError, safe_range
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

BUDGET = 1 << 24  # units; a character that a template makes costs one
PER_INPUT = 64  # units more for each character of the caller's variables
STEP = 64  # units of a round, a call, an operation
ELEMENT = 16  # units of an element of a list or dict
SECONDS = 2.0  # CPU time of the rendering thread
LOOK_EVERY = 1 << 12  # units from one look at the clock to the next
MAX_INT_BITS = 1 << 12
MAX_WIDTH = 999  # of one indentation or formatted field, characters

TEXT_METHODS = frozenset(
    "capitalize count endswith find format index isalnum isalpha isascii isdecimal isdigit "
    "islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix "
    "removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith strip "
    "swapcase title upper".split()
)
METHODS: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, TEXT_METHODS),
    (dict, frozenset({"get", "items", "keys", "values"})),
    ((list, tuple, int, float, range, type), frozenset()),
)
CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


class Meter:
    """What one rendering may still cost."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._look_at = budget - LOOK_EVERY
        self._end = time.thread_time() + SECONDS

    def charge(self, units: int) -> bool:
        """Pay *units*; True, so that it can stand in a condition.

        Raises:
            SecurityError: There is not that much left, or no time.
        """
        self._left -= units
        if self._left < self._look_at:
            self._look_at = self._left - LOOK_EVERY
            if self._left < 0 or time.thread_time() > self._end:
                raise SecurityError("the template does too much: too many rounds, or too much text")
        return True

    def weigh(self, value: Any) -> None:
        """Pay for *value* as it would be written out, everything in it included."""
        rest = [value]
        while rest:
            item = rest.pop()
            self.made(item)
            if isinstance(item, dict):
                rest.extend(item.keys())
                rest.extend(item.values())
            elif isinstance(item, CONTAINERS):
                rest.extend(item)

    def weigh_container(self, value: Any) -> Any:
        """Pay for comparing or hashing *value*, and return it."""
        self.charge(STEP)
        if isinstance(value, CONTAINERS):
            self.weigh(value)
        return value

    def made(self, value: Any) -> Any:
        """Pay for *value* alone, and return it."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, CONTAINERS):
            self.charge(ELEMENT * (1 + len(value)))
        elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise SecurityError(f"an integer of more than {MAX_INT_BITS} bits")
        return value
