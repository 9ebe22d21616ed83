"""Check and prepare JSON schemas for llguidance, also JSON schemas inside a Lark grammar."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from npurt.errors import GrammarError, brief
from npurt.llm.decode.grammar.bounded import ANY_REFERENCE, bound, target
from npurt.llm.decode.grammar.multiples import check_multiples

# Whitespace between two symbols of JSON.  Its length is limited: a model could repeat it endlessly.
# Source: llama.cpp common/json-schema-to-grammar.cpp, SPACE_RULE, MIT: the allowed whitespace.
JSON_SPACE = r"[ ]|\n{1,2}[ \t]{0,20}"
WRONG = "the JSON schema is wrong: "
LACKING = "the JSON schema has what npurt does not support: "
KEYWORDS = re.compile(r"Unimplemented keys: \[([^\]]*)\]")  # of llguidance
MAX_TRIALS = 200  # schemas that are read to find the wrong part of one
MAX_SCHEMAS = 100  # JSON schemas in a Lark grammar


def lark_of(text: str) -> str:
    """Return the JSON schema *text* as JSON for llguidance.

    Its objects are closed and its numbers bounded (`bounded`), and whitespace is bounded.

    Raises:
        GrammarError: *text* is not a JSON schema, or its multipleOf need too large a parser.
    """
    parsed = _parsed(text)
    if parsed is False:
        raise _wrong("it is false, so it matches no text")
    if parsed is True:  # llguidance requires an object
        parsed = {}
    if not isinstance(parsed, dict):
        raise _wrong("it is neither an object nor true")
    check_multiples(parsed)
    bound(parsed)
    own = parsed.get("x-guidance", {})
    if isinstance(own, dict):
        parsed["x-guidance"] = {"whitespace_pattern": JSON_SPACE} | own
    return json_of(parsed)


def at_its_place(error: GrammarError, text: str, read: Callable[[str], object]) -> GrammarError:
    """Return *error* about the schema *text* with the path of the part that causes it.

    Args:
        read: Raises GrammarError about the text of a schema that llguidance cannot read.
    """
    try:
        root = _parsed(text)
    except GrammarError:
        return error
    if not isinstance(root, dict) or not error.what.startswith((WRONG, LACKING)):
        return error
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}

    def reads(schema: Mapping[str, Any]) -> bool:
        try:
            read(json_of({**shared, **schema}))
        except GrammarError:
            return False
        return True

    path, schema, left = "#", root, MAX_TRIALS
    while left > 0:
        named = target(root, schema.get("$ref"))
        if isinstance(named, dict) and named is not root and not reads(named):
            path, schema, left = str(schema["$ref"]), named, left - 1
            continue
        for step, inner in _inner(schema):
            left -= 1
            if left > 0 and not reads(inner):
                path, schema = f"{path}/{step}", inner
                break
        else:
            break
    for key in schema:
        left -= 1
        if key not in shared and left > 0:
            rest = {name: value for name, value in schema.items() if name != key}
            if reads(rest):
                path = f"{path}/{_step(key)}"
                break
    if path == "#":
        return error
    what = error.what.removeprefix("the JSON schema ")
    remedy = f"change the schema at {path}"
    if error.what.startswith(LACKING):
        remedy = f"{remedy}: {error.remedy}"
    return GrammarError(f"the JSON schema, at {path}, {what}", remedy=remedy)


def lacking(reason: str) -> GrammarError | None:
    """Return the error if llguidance's *reason* is a keyword that it does not support."""
    if "coerce_one_of" in reason:
        return GrammarError(
            f"{LACKING}alternatives of oneOf that may match the same value", remedy="use anyOf"
        )
    if (found := KEYWORDS.search(reason)) is None:
        return None
    names = found[1].replace('"', "")
    return GrammarError(
        f"{LACKING}{names:.200}",
        remedy=f"leave {names:.200} out, and check the answer in your program",
    )


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas directly inside *schema*, each with its path from there."""
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        named = schema.get(key)
        for name, each in named.items() if isinstance(named, dict) else ():
            if isinstance(each, dict):
                yield f"{key}/{_step(name)}", each
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield key, schema[key]
    for key in ("prefixItems", "allOf", "anyOf", "oneOf"):
        listed = schema.get(key)
        for i, each in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(each, dict):
                yield f"{key}/{i}", each


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def references_in_lark(text: str) -> int:
    """Return the number of references in the JSON schemas of a Lark grammar.

    Raises:
        GrammarError: The multipleOf in a schema need too large a parser, or there are more than
            `MAX_SCHEMAS` schemas.
    """
    places = [found.end() for found in re.finditer(r"%json\s*", text)]
    if len(places) > MAX_SCHEMAS:
        raise GrammarError(
            f"the Lark has {len(places)} schemas, above {MAX_SCHEMAS}",
            remedy="use a simpler grammar",
        )
    count = 0
    for place in places:
        try:
            schema = json.JSONDecoder().raw_decode(text, place)[0]
        except (RecursionError, ValueError):  # a comment, or an error for llguidance to report
            continue
        check_multiples(schema)
        count += references(json_of(schema) if isinstance(schema, dict) else "")
    return count


def references(text: str) -> int:
    """Return the number of references in *text*, a JSON schema from `json_of`."""
    return text.count('"$ref"') - text.count(json_of(ANY_REFERENCE)[1:-1])


def json_of(schema: Any) -> str:
    """Return *schema*, which is JSON text or a parsed value, as JSON text.

    Raises:
        GrammarError: *schema* is neither a str nor a value that JSON can represent.
    """
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, bool | Mapping):
        raise _wrong(f"it is {brief(schema)}")
    try:
        return json.dumps(schema, default=dict)  # default converts other mappings
    except (RecursionError, TypeError, ValueError) as error:
        raise _wrong(str(error)) from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _wrong(str(error)) from error


def _wrong(what: str) -> GrammarError:
    remedy = "change this part of the schema; json-schema.org describes the keywords"
    return GrammarError(f"{WRONG}{what:.300}", remedy=remedy)
