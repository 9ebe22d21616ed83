"""Tests of grammars: another parser accepts generated texts, and all matching texts are allowed.

The oracles are `re` and `jsonschema`.  Random logits stand for a model; the tokenizers are
byte-level BPE and SentencePiece with byte fallback.
"""

import json
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar
from tests.llm.grammars import (
    EXPRESSIONS,
    FORMS,
    NAMES,
    PROMPT,
    is_of,
    tokenizer_of,
    written,
)

# --- Any grammar ---------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS, st.sampled_from(NAMES), st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_what_is_written_matches_the_expression(node, name, form, seed):
    text, complete = written(tokenizer_of(name), FORMS[form](node), seed)

    assert complete
    assert re.fullmatch(node.regex, text), (node.regex, text)


@settings(max_examples=40, deadline=None)
@given(
    EXPRESSIONS.flatmap(
        lambda node: st.tuples(st.just(node), st.from_regex(node.regex, fullmatch=True))
    ),
    st.sampled_from(NAMES),
    st.sampled_from(sorted(FORMS)),
)
def test_each_text_of_an_expression_is_allowed(pair, name, form):
    node, text = pair
    assert is_of(tokenizer_of(name), FORMS[form](node), text)


@settings(max_examples=40, deadline=None)
@given(EXPRESSIONS, st.text("abcé 09-x", max_size=6), st.sampled_from(sorted(FORMS)))
def test_no_other_text_is_allowed(node, text, form):
    wanted = bool(re.fullmatch(node.regex, text))
    assert is_of(tokenizer_of("qwen2"), FORMS[form](node), text) == wanted


@settings(max_examples=30, deadline=None)
@given(EXPRESSIONS, st.sampled_from(NAMES), st.data())
def test_what_is_allowed_depends_on_the_history_alone(node, name, data):
    """Rewound drafts and resumed sequences do not change the allowed tokens."""
    tokenizer, grammar = tokenizer_of(name), Grammar.from_regex(node.regex)
    moving = Constraint(grammar, tokenizer, len(PROMPT))
    texts = [list(PROMPT)]
    for _ in range(data.draw(st.integers(1, 8))):
        history = data.draw(st.sampled_from(texts))
        mask = moving.allowed(history)
        fresh = Constraint(grammar, tokenizer, len(PROMPT)).allowed(history)
        assert (mask is None) == (fresh is None)
        if mask is None:
            continue
        assert np.array_equal(mask, fresh)
        follow = sorted(set(np.flatnonzero(mask).tolist()) - tokenizer.eog)
        if follow:
            token = data.draw(st.sampled_from(follow))
            assert moving.fits(history, [token]) == 1
            texts.append([*history, token])


def test_a_recursive_grammar_is_no_regular_expression():
    """The grammar is that of matching brackets; the oracle counts the brackets."""
    grammar = Grammar.from_gbnf('root ::= "(" (root | "x")? ")"')
    for name in NAMES:
        for seed in range(10):
            text, complete = written(tokenizer_of(name), grammar, seed)
            inner = text.strip("()")
            depth = text.count("(")
            assert complete
            assert inner in ("", "x")
            assert text == "(" * depth + inner + ")" * depth


@pytest.mark.parametrize(
    ("gbnf", "inside", "outside"),
    [
        ('root ::= "\\u00e9" [\\u00e0-\\u00fc] # a comment', "éà", "éa"),
        ('root ::= "\\U0001F600"', "\U0001f600", "x"),
        ('root ::= "\\u0022\\x41\\n\\t\\\\"', '"A\n\t\\', '"A'),
        ("root ::= .{3}", "a\nb", "ab"),
        ('root ::= "/./" [.]', "/./.", "/x/."),
        ('root ::= [^"\\\\\\x7F\\x00-\\x1F]+', "ab é", 'a"b'),
        ('root ::= a-b{2,}\na-b ::= "x/y" | [\\]\\[]', "x/y[]", "x/y"),
        ('root ::= ws "a" ws\nws ::= [ \\t]*', " a\t", "a b"),
    ],
)
def test_literal_texts_of_gbnf(gbnf, inside, outside):
    grammar = Grammar.from_gbnf(gbnf)

    assert is_of(tokenizer_of("qwen2"), grammar, inside)
    assert not is_of(tokenizer_of("qwen2"), grammar, outside)


# --- JSON ----------------------------------------------------------------------------------------

NAMES_OF_PROPERTIES = st.text('abcé"\\ ', min_size=1, max_size=3)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text('ab"\\é\n', max_size=4))


def numbers(bounds):
    return {"type": "integer", "minimum": min(bounds), "maximum": max(bounds)}


def sized(kind, minimum, more):
    return {"type": "string", f"min{kind}": minimum, f"max{kind}": minimum + more}


def objects(inner):
    def one(properties, needed):
        return {
            "type": "object", "properties": properties, "additionalProperties": False,
            "required": [name for name, wanted in zip(properties, needed, strict=False) if wanted],
        }  # fmt: skip

    members = st.dictionaries(NAMES_OF_PROPERTIES, inner, max_size=3)
    return st.builds(one, members, st.lists(st.booleans(), min_size=3, max_size=3))


SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["null", "boolean"]}]),
        st.tuples(st.integers(-999, 999), st.integers(-999, 999)).map(numbers),
        st.builds(sized, st.just("Length"), st.integers(0, 3), st.integers(0, 3)),
        st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
        VALUES.map(lambda value: {"const": value}),
        st.just({"type": "string", "pattern": "^[a-f]{2}-[0-9]+x$", "maxLength": 9}),
        st.just({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 5000}),
    ),
    lambda inner: st.one_of(
        objects(inner),
        st.builds(
            lambda items, minimum, more: {
                "type": "array", "items": items, "minItems": minimum, "maxItems": minimum + more,
            },
            inner, st.integers(0, 2), st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.sampled_from(NAMES), st.integers(0, 2**32))
def test_what_is_written_is_of_the_schema(schema, name, seed):
    text, complete = written(
        tokenizer_of(name), Grammar.from_json_schema(schema), seed, maximum=1500
    )

    assert complete
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", NAMES)
def test_a_json_object_parses_whatever_it_has(name):
    """Every object that ends parses; unbounded objects often do not end within 60 tokens."""
    ended = 0
    for seed in range(12):
        text, complete = written(tokenizer_of(name), Grammar.json_object(), seed, maximum=60)
        ended += complete
        if complete:
            assert isinstance(json.loads(text), dict)
    assert ended


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n", " : ")])
@pytest.mark.parametrize("name", NAMES)
def test_json_may_have_space_but_not_without_end(name, separators):
    grammar = Grammar.json_object()
    text = json.dumps({"a": [1, "é", None], "b": {}}, ensure_ascii=False, separators=separators)

    assert is_of(tokenizer_of(name), grammar, text)
    assert not is_of(tokenizer_of(name), grammar, "{" + " " * 50 + "}")
