"""JSON schemas, and those in a grammar in Lark, before llguidance reads them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from npurt.errors import GrammarError, brief
from npurt.llm.decode.grammar.multiples import check_multiples

# Space between two symbols of JSON.  A model may repeat it for ever, so it has an end.
# Source: llama.cpp common/json-schema-to-grammar.cpp, SPACE_RULE, MIT: what is allowed.
JSON_SPACE = r"[ ]|\n{1,2}[ \t]{0,20}"
MAX_SCHEMAS = 100  # in a grammar; each is read up to its first error


def lark_of(text: str) -> str:
    """Return the schema that JSON *text* says, as JSON for llguidance.

    Raises:
        GrammarError: It is none, or its multiples need too large a parser.
    """
    parsed = _parsed(text)
    if parsed is False:
        raise _wrong("it is false, so it matches no text")
    if parsed is True:  # the package wants an object
        parsed = {}
    if not isinstance(parsed, dict):
        raise _wrong("it is neither an object nor true")
    check_multiples(parsed)
    own = parsed.get("x-guidance", {})
    if isinstance(own, dict):
        parsed["x-guidance"] = {"whitespace_pattern": JSON_SPACE} | own
    return json_of(parsed)


def references_in_lark(text: str) -> int:
    """Return how many references the schemas of a Lark grammar have.

    Raises:
        GrammarError: Multiples of one need too large a parser, or there are too many schemas.
    """
    places = [found.end() for found in re.finditer(r"%json\s*", text)]
    if len(places) > MAX_SCHEMAS:
        raise GrammarError(
            f"the Lark has {len(places)} schemas, above {MAX_SCHEMAS}", remedy="use a simpler one"
        )
    count = 0
    for place in places:
        try:
            schema = json.JSONDecoder().raw_decode(text, place)[0]
        except (RecursionError, ValueError):  # no schema, as in a comment; or llguidance says so
            continue
        check_multiples(schema)
        count += references(json_of(schema) if isinstance(schema, dict) else "")
    return count


def references(text: str) -> int:
    """Return how many references a schema as `json_of` writes it has."""
    return text.count('"$ref"')


def json_of(schema: Any) -> str:
    """Return *schema*, JSON text or what it stands for, as text.

    Raises:
        GrammarError: It is neither.
    """
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, bool | Mapping):
        raise _wrong(f"it is {brief(schema)}")
    try:
        return json.dumps(schema, default=dict)  # other mappings
    except (RecursionError, TypeError, ValueError) as error:
        raise _wrong(str(error)) from error


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _wrong(str(error)) from error


def _wrong(what: str) -> GrammarError:
    return GrammarError(f"the JSON schema is wrong: {what:.300}", remedy="correct the JSON schema")
