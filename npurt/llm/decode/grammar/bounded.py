"""Close the objects of a JSON schema, and bound its numbers and texts of a format.

JSON Schema allows any further property, and numbers of any length.  A small model that is unsure
writes both without end.  So an object with ``properties`` has no others unless the schema has
``additionalProperties``, and a number has at most 16 digits before the decimal point and 9 after it
unless the schema has bounds of its own.  Texts of a ``format`` have at most `FORMATS` characters.
A format that is not in `FORMATS` is a comment, as in JSON Schema, and is left out.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from npurt.errors import GrammarError

LARGEST = 10**16 - 1
SMALLEST_STEP = 1e-9  # the smallest step that llguidance reads exactly, in a number of 16 digits
MAX_STEPS = 100_000  # visited schemas
ANY = "npurt-any"  # name of the definition of any value with bounded numbers
ANY_REFERENCE = {"$ref": f"#/$defs/{ANY}"}
NUMBER: dict[str, Any] = {
    "minimum": -LARGEST, "maximum": LARGEST, "multipleOf": SMALLEST_STEP
}  # fmt: skip
ANY_VALUE = {**NUMBER, "items": ANY_REFERENCE, "additionalProperties": ANY_REFERENCE}
ALTERNATIVES = ("allOf", "anyOf", "oneOf")  # their schemas apply to the value of the outer schema
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
# Keywords that constrain which properties an object may have besides ``properties``.
OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
FIXED = ("enum", "const")
CONSTRAINTS = (
    *LOWER, *UPPER, *FIXED, *OPEN, "type", "multipleOf", "properties", "items", "prefixItems"
)  # fmt: skip

# The formats of texts that llguidance follows, each with the largest number of characters.
FORMATS = {
    "date": 10, "time": 40, "date-time": 60, "duration": 60, "email": 254, "hostname": 253,
    "ipv4": 15, "ipv6": 45, "uuid": 36, "uri": 2000,
}  # fmt: skip
UUIDS = tuple(f"uuid{version}" for version in range(1, 9))  # pydantic's names; a uuid each

Schema = dict[str, Any]


def bound(root: Schema) -> None:
    """Close the objects of *root*, a parsed schema, and bound its numbers, in place.

    Raises:
        GrammarError: *root* has too many references and alternatives.
    """
    places = _Places(root)
    anywhere = False
    for schema in places.closed:
        schema["properties"] = {**dict.fromkeys(places.names[id(schema)], True),
                                **schema.get("properties", {})}  # fmt: skip
        schema["additionalProperties"] = False
    for schema in places.alone:
        anywhere |= _bound_value(schema)
    if anywhere:
        definitions = root.setdefault("$defs", {})
        if isinstance(definitions, dict):
            definitions[ANY] = ANY_VALUE


class _Places:
    """Finds the schemas to change.

    Attributes:
        alone: Schemas whose values no other schema constrains.
        closed: Schemas of objects without ``additionalProperties``.
        names: The properties of each of the *closed* schemas, by the schema's id.
    """

    def __init__(self, root: Schema) -> None:
        self.closed: list[Schema] = []
        self.names: dict[int, list[str]] = {}
        self._root = root
        self._steps = 0
        self._joined: set[int] = set()  # ids of schemas whose values another one constrains
        alone: dict[int, Schema] = {}
        rest: list[tuple[Any, bool]] = [(root, True)]
        seen: set[tuple[int, bool]] = set()
        while rest:
            schema, single = rest.pop()
            if not isinstance(schema, dict) or (id(schema), single) in seen:
                continue
            seen.add((id(schema), single))
            self._step()
            _bound_format(schema)
            if single:
                alone[id(schema)] = schema
            else:
                self._joined.add(id(schema))
            rest += self._beneath(schema, single)
        self.alone = [schema for key, schema in alone.items() if key not in self._joined]
        self.closed = [schema for schema in self.alone if id(schema) in self.names]

    def _beneath(self, schema: Schema, single: bool) -> Iterator[tuple[Any, bool]]:
        """Yield the schemas inside *schema*, each with whether no other applies to its value."""
        own = any(key in schema for key in CONSTRAINTS)
        inner = list(self._directly_in(schema))
        several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
        branches = sum(key in schema for key in ("$ref", *ALTERNATIVES))
        if not own and inner and branches == 1 and not several:  # each is the whole schema
            yield from ((part, single) for part in inner)
            return
        parts = list(self._parts(schema)) if inner else [schema]
        if single:
            self._close(schema, parts)
        self._joined.update(id(part) for part in parts if part is not schema)
        constraining = sum(any(key in part for key in CONSTRAINTS) for part in parts)
        names = Counter(name for part in parts for name in _properties(part))
        patterns = any("patternProperties" in part for part in parts)
        for part in parts:
            for name, each in _properties(part).items():
                yield each, single and names[name] == 1 and not patterns
            for key in ("items", "prefixItems", "additionalItems", "additionalProperties"):
                value = part.get(key)
                for each in value if isinstance(value, list) else [value]:
                    yield each, single and constraining == 1
            for each in _values(part.get("patternProperties")):
                yield each, False

    def _close(self, schema: Schema, parts: list[Schema]) -> None:
        objects = any("properties" in part for part in parts)
        if objects and not any(key in part for part in parts for key in OPEN):
            self.names[id(schema)] = [
                name for part in parts for name in (*_properties(part), *_required(part))
            ]

    def _parts(self, schema: Schema) -> Iterator[Schema]:
        """Yield *schema* and the schemas that constrain the same value."""
        rest, seen = [schema], set()
        while rest:
            part = rest.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            self._step()
            yield part
            rest += reversed(list(self._directly_in(part)))

    def _directly_in(self, schema: Schema) -> Iterator[Any]:
        if "$ref" in schema:
            yield target(self._root, schema["$ref"])
        for key in ALTERNATIVES:
            each = schema.get(key)
            yield from each if isinstance(each, list) else ()

    def _step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GrammarError(
                "the JSON schema has too many references and alternatives",
                remedy="use a simpler JSON schema",
            )


def target(root: Any, reference: Any) -> Any:
    """Return the schema that the JSON pointer *reference* names; None if there is none."""
    found = root
    start, *steps = str(reference).split("/")
    if start != "#":
        return None
    for step in steps:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            return None
    return found


def _bound_value(schema: Schema) -> bool:
    """Bound the numbers that *schema* allows; return whether it now refers to `ANY`."""
    if any(key in schema for key in (*FIXED, "$ref", *ALTERNATIVES)):
        return False
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else None
    if kinds is None or "number" in kinds or "integer" in kinds:
        _bound_number(schema, whole=kinds is not None and "number" not in kinds)
    anywhere = False
    if (kinds is None or "array" in kinds) and schema.get("items", True) is True:
        anywhere = True
        schema["items"] = ANY_REFERENCE
    if (kinds is None or "object" in kinds) and schema.get("additionalProperties", True) is True:
        anywhere = True
        schema["additionalProperties"] = ANY_REFERENCE
    for name, each in _properties(schema).items():
        if each is True:
            anywhere = True
            schema["properties"][name] = ANY_REFERENCE
    return anywhere


def _bound_format(schema: Schema) -> None:
    """Bound the length of texts of a format; leave out a format that llguidance does not know."""
    given = schema.get("format")
    if not isinstance(given, str):
        return
    name = "uuid" if given in UUIDS else given
    if name not in FORMATS:
        del schema["format"]
        return
    schema["format"] = name
    least = schema.get("minLength", 0)
    if isinstance(least, int) and least <= FORMATS[name]:
        schema.setdefault("maxLength", FORMATS[name])


def _bound_number(schema: Schema, *, whole: bool) -> None:
    given = [schema[key] for key in (*LOWER, *UPPER) if key in schema]
    if not all(isinstance(each, int | float) for each in given):
        return  # llguidance reports the wrong value
    exact = all(round(each, 9) == each for each in given)
    if not any(key in schema for key in LOWER) and all(each > -LARGEST for each in given):
        schema["minimum"] = -LARGEST
    if not any(key in schema for key in UPPER) and all(each < LARGEST for each in given):
        schema["maximum"] = LARGEST
    if not whole and exact:
        schema.setdefault("multipleOf", SMALLEST_STEP)


def _properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []
