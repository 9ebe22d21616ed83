"""Tests of multipleOf: a schema is refused only if its parser would be too large."""

import json

import pytest

from npurt.errors import GrammarError
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.multiples import check_multiples
from tests.llm.grammars import is_of, tokenizer_of


def integer(multiple):
    return {"type": "integer", "multipleOf": multiple}


def properties(**schemas):
    return {"type": "object", "properties": schemas}


A, B = integer(997), integer(991)  # their product is 988,027 states
ALONE = {
    "of two properties": properties(price={"type": "number", "multipleOf": 0.01}, qty=integer(500)),
    "of tokens": properties(a=integer(25), b={"type": "number", "multipleOf": 0.001}),
    "of primes": properties(a=A, b=B),
    "of elements": {"type": "array", "prefixItems": [A, properties(a=B)]},
    "of definitions": {"$defs": {"a": A, "b": B}}
    | properties(a={"$ref": "#/$defs/a"}, b={"$ref": "#/$defs/b"}),
    "of bases": {"$defs": {"a": properties(a=A)}}
    | {"allOf": [{"$ref": "#/$defs/a"}, properties(b=B)]},
    "as data": {"const": {"multipleOf": 1000003}},
    "as an example": {"type": "integer", "default": {"multipleOf": 1000003},
                      "examples": [{"multipleOf": 1000003}]},
    "of a property called const": properties(const=A, enum=B),
    "that divide each other": {"allOf": [integer(10), integer(500)]},
    "in a tree": {"$defs": {"n": properties(a=A, left={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"},
}  # fmt: skip
TOGETHER = {
    "all": {"allOf": [A, B]},
    "one beside all": A | {"allOf": [{"multipleOf": 991}]},
    "any": {"anyOf": [A, B]},
    "one": {"oneOf": [A, {"oneOf": [B]}]},
    "any beside one": A | {"anyOf": [{"multipleOf": 991}, {"multipleOf": 2}]},
    "a reference": {"$defs": {"a": {"multipleOf": 991}}, "$ref": "#/$defs/a"} | A,
    "a reference to a definition's part": {
        "$defs": {"a": {"anyOf": [True, {"multipleOf": 991}]}}, "$ref": "#/%24defs/a/anyOf/1",
    } | A,
    "an anchor": {"$defs": {"a": {"$anchor": "x", "multipleOf": 991}}, "$ref": "#x"} | A,
    "properties of the same name": {"allOf": [properties(a=A), properties(a=B)]},
    "a pattern": properties(a=A) | {"patternProperties": {"^a": B}},
    "two patterns": {"patternProperties": {"^a": A, "a$": B}},
    "elements": {"allOf": [{"items": A}, {"prefixItems": [B]}]},
    "far below": properties(
        x={"items": {"allOf": [properties(y=A), properties(y={"anyOf": [B]})]}}
    ),
    "data by a reference": {"const": {"x": integer(1000003)}, "$ref": "#/const/x"},
    "large": integer(10_001),
    "small": {"type": "number", "multipleOf": 1.00001},
    "many": properties(**{f"p{i}": integer(9_999 - i) for i in range(6)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_numbers_that_are_apart_have_parsers_of_their_own(name):
    check_multiples(ALONE[name])
    Grammar.from_json_schema(ALONE[name])


@pytest.mark.parametrize("name", TOGETHER)
def test_multiples_of_one_number_are_multiplied(name):
    with pytest.raises(GrammarError, match="multipleOf") as caught:
        Grammar.from_json_schema(TOGETHER[name])
    assert "check the numbers afterwards" in caught.value.remedy
    with pytest.raises(GrammarError, match="multipleOf"):
        Grammar.from_lark(f"start: %json {json.dumps(TOGETHER[name])}")


def test_numbers_apart_are_multiples_each_of_its_own():
    schema = ALONE["of two properties"] | {"additionalProperties": False}
    grammar = Grammar.from_json_schema(schema)

    def fits(text):
        return is_of(tokenizer_of("qwen2"), grammar, text)

    assert fits('{"price":12.34,"qty":1500}')
    assert not fits('{"price":12.345,"qty":1500}')
    assert not fits('{"price":12.34,"qty":1501}')


def test_a_schema_with_too_many_ways_is_refused_soon():
    """In this schema, each of 400 properties refers to a choice of 400 references to schemas."""
    schema = {
        "$defs": {"all": {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(400)]}}
        | {f"d{i}": {"type": "string", "maxLength": i} for i in range(400)},
        "allOf": [properties(**{f"p{i}": {"$ref": "#/$defs/all"} for i in range(400)}), {}],
    }
    with pytest.raises(GrammarError, match="too many references"):
        check_multiples(schema)
