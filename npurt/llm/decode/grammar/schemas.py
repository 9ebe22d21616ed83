"""Check and prepare JSON schemas for llguidance, also JSON schemas inside a Lark grammar."""

import json
import re
from collections.abc import Mapping
from typing import Any

from npurt.errors import GrammarError, brief
from npurt.llm.decode.grammar.multiples import check_multiples

# Whitespace between two symbols of JSON.  Its length is limited: a model could repeat it endlessly.
# Source: llama.cpp common/json-schema-to-grammar.cpp, SPACE_RULE, MIT: the allowed whitespace.
JSON_SPACE = r"[ ]|\n{1,2}[ \t]{0,20}"
MAX_SCHEMAS = 100  # JSON schemas in a Lark grammar


def lark_of(text: str) -> str:
    """Return the JSON schema *text* with npurt's rule for whitespace, as JSON for llguidance.

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
    own = parsed.get("x-guidance", {})
    if isinstance(own, dict):
        parsed["x-guidance"] = {"whitespace_pattern": JSON_SPACE} | own
    return json_of(parsed)


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
    return text.count('"$ref"')


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
    return GrammarError(f"the JSON schema is wrong: {what:.300}", remedy="correct the JSON schema")
