"""Write JSON Schemas of request bodies, and check bodies against them.

The module supports the keywords of JSON Schema that `bodies` uses: type, enum, anyOf, minimum,
maximum, maxLength, minItems, maxItems, maxProperties, items, required, properties.  Additional
properties are allowed.  /openapi.json publishes the schemas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from npurt.errors import brief
from npurt.serve.http.errors import HttpError, wrong

Schema = Mapping[str, Any]

LARGEST = (1 << 63) - 1
ANY: Schema = {}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "boolean": bool, "integer": (int, float), "number": (int, float),
    "array": list, "object": dict, "null": type(None),
}  # fmt: skip


# --- Writing schemas ----------------------------------------------------------------------------


def text(maximum: int) -> Schema:
    """Return the schema of a string of at most *maximum* characters."""
    return {"type": "string", "maxLength": maximum}


def integer(minimum: int = -LARGEST, maximum: int = LARGEST) -> Schema:
    """Return the schema of an integer from *minimum* to *maximum*; the value 3.0 is allowed."""
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def array(items: Schema, maximum: int | None = None, minimum: int = 0) -> Schema:
    """Return the schema of a list of *minimum* to *maximum* elements."""
    bounds = {"minItems": minimum or None, "maxItems": maximum}
    return {"type": "array", "items": items} | {k: v for k, v in bounds.items() if v is not None}


def mapping(maximum: int) -> Schema:
    """Return the schema of an object with at most *maximum* properties of any names."""
    return {"type": "object", "maxProperties": maximum}


def enum(*values: str) -> Schema:
    """Return the schema of a string that is one of *values*."""
    return {"type": "string", "enum": list(values)}


def either(*schemas: Schema) -> Schema:
    """Return the schema of values that match one of *schemas*, whose types must all differ."""
    return {"anyOf": list(schemas)}


def fields(properties: Mapping[str, Schema], *required: str) -> Schema:
    """Return the schema of an object; each property that is not *required* may be null."""
    found = {
        name: schema if name in required else _or_null(schema)
        for name, schema in properties.items()
    }
    return {"type": "object", "properties": found} | (
        {"required": list(required)} if required else {}
    )


def _or_null(schema: Schema) -> Schema:
    """Return *schema* with null allowed; a null field counts as missing."""
    if not schema:
        return schema
    branches = schema.get("anyOf", [schema])
    return {"anyOf": [*branches, {"type": "null"}]}


# --- Checking values ----------------------------------------------------------------------------


def check(value: Any, schema: Schema, name: str = "") -> None:
    """Check *value* against *schema*.

    Args:
        name: The field's full name, for the error message; empty for the body.

    Raises:
        HttpError: The value does not match *schema*.
    """
    found = branch(schema, value)
    if found is None or not _fits(value, found):
        raise refused(value, schema, name)
    if isinstance(value, list):
        items = found.get("items", ANY)
        if items and not _are_integers(value, items):
            for i, each in enumerate(value):
                check(each, items, f"{name}[{i}]")
    elif isinstance(value, dict):
        properties: Mapping[str, Schema] = found.get("properties", {})
        for field in found.get("required", ()):
            if field not in value:
                raise refused(None, properties[field], _joined(name, field))
        for field, each in properties.items():
            if field in value:
                check(value[field], each, _joined(name, field))


def _are_integers(values: list[Any], schema: Schema) -> bool:
    """Return whether *values* are integers that match *schema*; False may also mean unknown.

    This takes a hundredth of the time of checks of each value.
    """
    found = branch(schema, 0)
    return found is not None and set(map(type, values)) == {int} and (
        _fits(min(values), found) and _fits(max(values), found)
    )  # fmt: skip


def branch(schema: Schema, value: Any) -> Schema | None:
    """Return the alternative of *schema* that has the type of *value*; None if none has it."""
    return next((each for each in schema.get("anyOf", (schema,)) if _typed(value, each)), None)


def refused(value: Any, schema: Schema, name: str) -> HttpError:
    """Return the error of a *value* that does not match *schema*."""
    size = f"a list of {len(value)}" if isinstance(value, list) else ""
    what = f"{name} is {size or brief(value, 100)}"
    return wrong(what, f"{name} must be {allowed(schema)}", param=name)


def allowed(schema: Schema) -> str:
    """Describe in words the values that *schema* allows."""
    kinds = [_in_words(each) for each in schema.get("anyOf", (schema,))]
    return ", or ".join(kind for kind in kinds if kind)


def _joined(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _typed(value: Any, schema: Schema) -> bool:
    kind = schema.get("type")
    if kind is None:
        return True
    if isinstance(value, bool) and kind != "boolean":
        return False
    if kind == "integer" and isinstance(value, float) and not value.is_integer():
        return False
    return isinstance(value, TYPES[kind])


def _fits(value: Any, schema: Schema) -> bool:
    """Return whether *value*, of the right type, is in the schema's enum or within its bounds."""
    if "enum" in schema:
        return value in schema["enum"]
    if isinstance(value, str):
        return len(value) <= int(schema.get("maxLength", LARGEST))
    if isinstance(value, list):
        return int(schema.get("minItems", 0)) <= len(value) <= int(schema.get("maxItems", LARGEST))
    if isinstance(value, dict):
        return len(value) <= int(schema.get("maxProperties", LARGEST))
    if "minimum" in schema:
        return bool(schema["minimum"] <= value <= schema["maximum"])
    return True


def _in_words(schema: Schema) -> str:
    if "enum" in schema:
        return _listed(schema["enum"])
    match schema.get("type", ""):
        case "string":
            maximum = schema.get("maxLength")
            return f"a string of {maximum} characters at most" if maximum else "a string"
        case "integer":
            return f"a whole number of {schema['minimum']} to {schema['maximum']}"
        case "array":
            minimum, maximum = schema.get("minItems", 0), schema.get("maxItems")
            bounds = [f"{minimum} at least"] * bool(minimum) + [f"{maximum} at most"] * bool(
                maximum
            )
            return f"a list of {' and '.join(bounds)}" if bounds else "a list"
        case "object" if "maxProperties" in schema:
            return f"an object of {schema['maxProperties']} entries at most"
        case kind:
            return {"boolean": "true or false", "number": "a number", "object": "an object"}.get(
                kind, ""
            )


def _listed(values: Sequence[str]) -> str:
    return " or ".join(value or '""' for value in values)
