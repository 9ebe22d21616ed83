"""Objects of a JSON schema are closed and numbers bounded, unless the schema says otherwise."""

import json

import jsonschema
import pytest

from npurt.errors import GrammarError
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.library import limits, llguidance
from npurt.llm.decode.grammar.vocabulary import vocabulary_of_bytes
from tests.llm.grammars import tokenizer_of, written

PERSON = {  # as pydantic writes it
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "age": {"title": "Age", "type": "integer"},
        "home": {"anyOf": [{"$ref": "#/$defs/Home"}, {"type": "null"}], "default": None},
        "size": {"title": "Size", "type": "number"},
    },
    "required": ["name", "age"],
    "$defs": {"Home": {"type": "object", "properties": {"x": {"type": "number"}}}},
}
BASE = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
ALL = {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "object", "properties": {
    "c": {"type": "integer"}}}}}], "$defs": {"Base": BASE}}  # fmt: skip
ONE_OF = {"type": "object", "properties": {"k": {"type": "integer"}},
          "anyOf": [BASE, {"properties": {"b": {}}, "required": ["b"]}]}  # fmt: skip
TREE = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {
    "kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}}}  # fmt: skip


def allowed(schema, text):
    """Return the part of *text* that the grammar of *schema* allows."""
    lark = Grammar.from_json_schema(schema).lark
    matcher = llguidance().LLMatcher(vocabulary_of_bytes(), lark, log_level=0, limits=limits())
    return text.encode()[: matcher.validate_tokens(list(text.encode()))].decode()


@pytest.mark.parametrize(
    ("schema", "text", "upto"),
    [
        (PERSON, '{"name": "x", "age": 1, "job": 2}', '{"name": "x", "age": 1, "'),
        (PERSON, '{"name": "x", "age": 1, "home": {"x": 1.5}, "size": 1}', None),
        (PERSON, '{"name": "x", "age": 1, "home": {"y"', '{"name": "x", "age": 1, "home": {"'),
        (ALL, '{"a": 1, "b": {"c": 2}}', None),
        (ALL, '{"a": 1, "c"', '{"a": 1, "'),
        (ALL, '{"a": 1, "b": {"d"', '{"a": 1, "b": {"'),
        (ONE_OF, '{"k": 1, "b": [1]}', None),
        (ONE_OF, '{"k": 1, "b": 2, "z"', '{"k": 1, "b": 2'),
        (TREE, '{"kids": [{"kids": []}, {}]}', None),
        (TREE, '{"kids": [{"other"', '{"kids": [{"'),
        ({"properties": {"a": {}}, "required": ["z"]}, '{"a": 1, "z": "x"}', None),
    ],
)
def test_an_object_has_no_properties_but_those_of_its_schema(schema, text, upto):
    assert allowed(schema, text) == (text if upto is None else upto)


def of_format(name, **more):
    return {"properties": {"a": {"type": "string", "format": name, **more}}, "required": ["a"]}


@pytest.mark.parametrize("name", ["password", "path", "binary", "json-string", "made up"])
def test_a_format_that_is_not_known_is_a_comment(name):
    """Formats of pydantic's types Path, SecretStr and bytes; JSON Schema ignores unknown ones."""
    text = '{"a": "x/y"}'
    assert allowed(of_format(name), text) == text
    inside = {"anyOf": [{"type": "string", "format": name}, {"type": "null"}]}
    assert allowed({"properties": {"a": inside}}, text) == text


@pytest.mark.parametrize(
    ("name", "begin", "most"),
    [("email", "a@b.", 254), ("hostname", "a.", 253), ("uri", "http://a", 2000),
     ("duration", "P", 60), ("date-time", "2024-01-01T00:00:00.", 60)],
)  # fmt: skip
def test_a_text_of_a_format_is_bounded(name, begin, most):
    """A small model goes on with an address for ever; each format has a longest text."""
    repeated = "a." if name == "hostname" else "1"
    found = allowed(of_format(name), '{"a": "' + begin + repeated * 3000)
    assert len(found) <= len('{"a": "') + most
    given = allowed(of_format(name, maxLength=25), '{"a": "' + begin + repeated * 3000)
    assert len(given) <= len('{"a": "') + 25


def test_a_format_keeps_its_meaning():
    assert allowed(of_format("date"), '{"a": "2024-13') == '{"a": "2024-1'
    assert allowed(of_format("uuid4"), '{"a": "xyz') == '{"a": "'
    assert allowed({"type": "integer", "format": "int32"}, "12") == "12"
    named = {"properties": {"format": {"type": "string"}}, "required": ["format"]}
    assert allowed(named, '{"format": "x"}') == '{"format": "x"}'


@pytest.mark.parametrize(
    ("schema", "where", "keyword"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}},
         "#/properties/a/uniqueItems", "uniqueItems"),
        ({"properties": {"a": {"not": {}}}}, "#/properties/a/not", "not"),
        ({"properties": {"a": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}},
         "#/properties/a/oneOf", "alternatives of oneOf"),
    ],
)  # fmt: skip
def test_a_keyword_that_is_not_supported_is_named_at_its_place(schema, where, keyword):
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema(schema)
    said = str(caught.value)
    assert f"at {where}, has what npurt does not support: {keyword}" in said
    assert "coerce" not in said
    assert "Unimplemented" not in said
    assert "json-schema.org" not in said


def test_a_schema_that_matches_no_text_shows_no_regular_expression():
    with pytest.raises(GrammarError) as caught:
        Grammar.from_json_schema({"enum": ["a"], "format": "date"})
    assert "(And" not in str(caught.value)


@pytest.mark.parametrize(
    "open_",
    [
        {**PERSON, "additionalProperties": True},
        {**BASE, "additionalProperties": {"type": "integer"}},
        {**BASE, "patternProperties": {"^x": {"type": "integer"}}},
        {"allOf": [{**BASE, "additionalProperties": True}, {"properties": {"b": {}}}]},
        {"type": "object"},
        {},
    ],
)
def test_an_object_is_open_if_its_schema_says_so_or_names_no_property(open_):
    text = '{"name": "x", "age": 1, "xx": 7' if "name" in str(open_) else '{"a": 1, "xx": 7'
    assert allowed(open_, text) == text


SIXTEEN = "1234567890123456"


@pytest.mark.parametrize(
    ("schema", "text", "upto"),
    [
        ({"type": "integer"}, SIXTEEN + "7", SIXTEEN),
        ({"type": "integer"}, f"-{SIXTEEN}7", f"-{SIXTEEN}"),
        ({"type": ["integer", "null"]}, SIXTEEN + "7", SIXTEEN),
        ({"type": "integer", "minimum": 0}, SIXTEEN + "7", SIXTEEN),
        ({"type": "number"}, SIXTEEN + "7", SIXTEEN),
        ({"type": "number"}, "1.1234567891", "1.123456789"),
        ({"type": "number"}, "1e99", "1"),
        ({"type": "number", "maximum": 2}, "1.1234567891", "1.123456789"),
        ({}, "1.1234567891", "1.123456789"),
        ({"type": "array"}, "[1.1234567891", "[1.123456789"),
        ({"type": "object"}, '{"x": [1.1234567891', '{"x": [1.123456789'),
        ({"items": {"type": "integer"}}, f"[{SIXTEEN}7", f"[{SIXTEEN}"),
        ({"type": "number", "multipleOf": 0.01}, "1.123", "1.12"),
        ({"type": "integer", "maximum": 10**17}, SIXTEEN + "7", None),
        ({"type": "number", "minimum": 1e-12, "maximum": 1e-10}, "0.00000000005", None),
        ({"const": 0.12345678912}, "0.12345678912", None),
        ({"allOf": [{"type": "integer"}, {"multipleOf": 3}]}, "12", None),
    ],
)
def test_a_number_has_an_end_unless_its_schema_says_otherwise(schema, text, upto):
    assert allowed(schema, text) == (text if upto is None else upto)


@pytest.mark.parametrize("schema", [PERSON, ALL, ONE_OF])
@pytest.mark.parametrize("seed", range(3))
def test_a_random_text_of_a_bounded_schema_is_of_the_schema(schema, seed):
    text, complete = written(tokenizer_of("qwen2"), Grammar.from_json_schema(schema), seed, 200)
    if complete:
        jsonschema.validate(json.loads(text), schema)


def test_a_schema_of_the_caller_is_not_changed():
    before = json.dumps(PERSON)
    Grammar.from_json_schema(PERSON)
    assert json.dumps(PERSON) == before


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"tz": {"pattern": "^(?=U)"}}}, "#/properties/tz/pattern"),
        ({"type": 5}, "#/type"),
        ({"properties": {"a": {"allOf": [{"$ref": "#/$defs/x"}]}},
          "$defs": {"x": {"items": {"uniqueItems": True, "type": "array"}}}},
         "#/$defs/x/items/uniqueItems"),
        ({"items": {"$ref": "#/$defs/none"}}, "#/items/$ref"),
        ({"properties": {"a/b~": {"minimum": "x"}}}, "#/properties/a~1b~0/minimum"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_in_the_schema_and_no_grammar(schema, path):
    with pytest.raises(GrammarError) as found:
        Grammar.from_json_schema(schema)
    assert f"at {path}," in found.value.what
    assert path in found.value.remedy
    assert "%json" not in str(found.value)
    assert "Lark" not in str(found.value)


def makers():
    """Return functions that make a grammar of the text of a schema, one for each interface."""
    from npurt.cli.arguments.sampling import GrammarArgument
    from npurt.compat.llama_cpp import LlamaGrammar
    from npurt.llm.decode.grammar.grammar import grammar_of
    from npurt.llm.decode.grammar.lark import one_call, parameters

    return {
        "-j": lambda text: GrammarArgument(True, False, text).grammar(),
        "compat": LlamaGrammar.from_json_schema,
        "json_object": lambda text: grammar_of(
            None, {"type": "json_object", "schema": json.loads(text)}
        ),
        "json_schema": lambda text: grammar_of(
            None, {"type": "json_schema", "json_schema": {"schema": json.loads(text)}}
        ),
        "a tool": lambda text: Grammar.from_json_schema(parameters(json.loads(text))),
        "a call": lambda text: grammar_of(None, one_call({"f": json.loads(text)})),
    }


@pytest.mark.parametrize("name", makers())
def test_every_interface_closes_and_bounds(name):
    grammar = makers()[name](json.dumps(BASE))
    grammar = getattr(grammar, "grammar", grammar)
    begin = '{"name": "f", "arguments": ' if name == "a call" else ""
    matcher = llguidance().LLMatcher(
        vocabulary_of_bytes(), grammar.lark, log_level=0, limits=limits()
    )
    text = f'{begin}{{"a": {SIXTEEN}'
    assert matcher.validate_tokens(list(f"{text}7".encode())) == len(text)
    assert matcher.validate_tokens(list(f'{text}, "b"'.encode())) == len(text)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_function_without_parameters_takes_nothing(schema):
    from npurt.llm.decode.grammar.lark import parameters

    assert allowed(parameters(schema), "{}") == "{}"
    assert allowed(parameters(schema), '{"type"') == "{"
