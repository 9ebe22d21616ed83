"""Limit the cost of multipleOf in JSON schemas: the number of states in the parser of a number.

A parser for the multiples of N has one state for each remainder.  If several schemas may apply to a
number, the number of states is the least common multiple of their values.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import unquote

from npurt.errors import GrammarError

# A parser with 10,000 states takes 0.1 s and a few MB; one with 1,000,000 states takes 30 s and
# 600 MB.  llguidance has no limit for this.
MAX_STATES = 10_000  # states for one number
MAX_TOGETHER = 50_000  # states for all numbers of a schema
MAX_STEPS = 100_000  # schemas visited in one walk
IN_PLACE = ("allOf", "anyOf", "oneOf")  # keywords that apply to the value of the enclosing schema
OWN = ("multipleOf", "properties", "additionalProperties", "items", "prefixItems")
# Keywords that contain schemas, with the values to which those schemas apply.
BENEATH = {
    "patternProperties": "any property", "additionalProperties": "any property",
    "items": "element", "prefixItems": "element", "additionalItems": "element",
    "$defs": "", "definitions": "",
}  # fmt: skip
NAMED = ("properties", "patternProperties", "$defs", "definitions")

Place = tuple[str, ...]  # keyword and property name; schemas with equal places apply together


def check_multiples(schema: Any) -> None:
    """Check the number of parser states that multipleOf needs in *schema*.

    Raises:
        GrammarError: One number, or all numbers together, need too many states.
    """
    each_once = {id(each): each for each, _ in _walk(schema, [(schema, ())])}.values()
    groups: dict[Any, set[Decimal]] = defaultdict(set)
    joined: list[tuple[Any, Place]] = []
    for i, each in enumerate(each_once):
        for value in _values(each):
            groups[value].add(value)
        if _parts(each) > 1:
            joined.append((each, ("joined", str(i))))
    for each, place in _walk(schema, joined):
        if place != ("",):  # a definition applies only at its references
            groups[place].update(_values(each))
    anywhere = groups[("any property",)]
    total = 0
    for place, values in groups.items():
        named = isinstance(place, tuple) and place[0] == "properties"
        total += _states(values | anywhere if named else values)
    if total > MAX_TOGETHER:
        raise _too_many("all multipleOf together", MAX_TOGETHER)


def _walk(root: Any, begin: Iterable[tuple[Any, Place]]) -> Iterator[tuple[Any, Place]]:
    """Yield the schemas in *begin* and all schemas inside them, with each place they apply to."""
    rest = list(begin)
    seen = set()
    while rest:
        schema, place = rest.pop()
        if not isinstance(schema, dict) or (id(schema), place) in seen:
            continue
        seen.add((id(schema), place))
        if len(seen) > MAX_STEPS:
            raise GrammarError(
                "the JSON schema has too many references and alternatives",
                remedy="use a simpler JSON schema",
            )
        yield schema, place
        for keyword, value in schema.items():
            if keyword == "$ref":
                rest += [(each, place) for each in _targets(root, value)]
            elif keyword in IN_PLACE and isinstance(value, list):
                rest += [(each, place) for each in value]
            elif keyword == "properties" and isinstance(value, dict):
                rest += [(each, (keyword, name)) for name, each in value.items()]
            elif keyword in BENEATH:
                rest += [(each, (BENEATH[keyword],)) for each in _members(keyword, value)]


def _members(keyword: str, value: Any) -> list[Any]:
    if isinstance(value, dict) and keyword in NAMED:
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _targets(root: Any, reference: Any) -> list[Any]:
    """Return the schema that *reference* points to.

    If *reference* is not a JSON pointer that resolves, return the root and all definitions.
    """
    found = root
    try:
        start, *steps = str(reference).split("/")
        if start != "#":
            raise KeyError(start)
        for step in steps:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (KeyError, IndexError, TypeError, ValueError):
        return [root, *(each for key in ("$defs", "definitions") if isinstance(root, dict)
                        for each in _members(key, root.get(key)))]  # fmt: skip
    return [found]


def _parts(schema: dict[str, Any]) -> int:
    """Return the number of schemas that constrain the value of *schema*, including *schema*."""
    lists = [schema[name] for name in IN_PLACE if isinstance(schema.get(name), list)]
    patterns = schema.get("patternProperties")
    return (
        sum(map(len, lists))
        + ("$ref" in schema)
        + any(name in schema for name in OWN)
        + (len(patterns) if isinstance(patterns, dict) else 0)
    )


def _values(schema: dict[str, Any]) -> list[Decimal]:
    """Return a list of the valid value of multipleOf, normalized; otherwise an empty list."""
    try:
        number = Decimal(str(schema["multipleOf"])).normalize()
    except (InvalidOperation, KeyError, ValueError):  # llguidance reports an invalid value
        return []
    return [number] if number.is_finite() and number > 0 else []


def _states(values: set[Decimal]) -> int:
    """Return the number of parser states for a number to which all *values* may apply.

    Values are scaled to integers first: 0.25 and 2 become 25 and 200.

    Raises:
        GrammarError: There are more than `MAX_STATES` states.
    """
    decimals = max((-int(each.as_tuple().exponent) for each in values), default=0)
    together = 1
    for value in sorted(values):
        many = value.adjusted() + decimals > len(str(MAX_STATES))
        states = MAX_STATES + 1 if many else int(value.scaleb(max(decimals, 0)))
        together = math.lcm(together, states or 1)
        if together > MAX_STATES:
            raise _too_many(f"multipleOf, {value:.6g},", MAX_STATES)
    return together


def _too_many(what: str, maximum: int) -> GrammarError:
    return GrammarError(
        f"{what} needs a parser with more than {maximum} states",
        remedy="leave out each multipleOf that is large or has many decimals, and check the "
        "numbers afterwards",
    )
