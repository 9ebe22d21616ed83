"""Tests of grammars that are invalid, too large, or of unusual types."""

import gc
import json
import re
import resource
import sys
import threading
import time
import weakref
from itertools import pairwise

import numpy as np
import pytest

from npurt.errors import GrammarError, SettingError, UnsupportedOp
from npurt.llm.decode.grammar import constraint
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import MAX_TEXT, Grammar, grammar_of
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer
from tests.llm.grammars import (
    FOLDER,
    is_of,
    tokenizer_of,
    written,
)

# --- Options -------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("response_format", "wanted"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, Grammar.json_object()),
        ({"type": "json_object", "schema": SCHEMA}, Grammar.from_json_schema(SCHEMA)),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
         Grammar.from_json_schema(SCHEMA)),
        ({"type": "json_schema", "schema": SCHEMA}, Grammar.from_json_schema(SCHEMA)),
    ],
    ids=str,
)  # fmt: skip
def test_formats_of_answers_are_grammars(response_format, wanted):
    assert grammar_of(None, response_format) == wanted


def test_a_grammar_may_be_text_in_gbnf():
    assert grammar_of('root ::= "a"', None) == Grammar.from_gbnf('root ::= "a"')
    assert Grammar.from_json_schema(json.dumps(SCHEMA)) == Grammar.from_json_schema(SCHEMA)
    assert "GBNF" in repr(Grammar.from_gbnf('root ::= "a"'))


@pytest.mark.parametrize(
    "options",
    [
        (5, None), (b"x", None), (None, "json"), (None, {}), (None, {"type": "xml"}),
        (None, {"type": "json_schema"}), (None, {"type": "json_schema", "json_schema": 5}),
        ('root ::= "a"', {"type": "json_object"}),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(SettingError, match=r"grammar|response_format"):
        grammar_of(*options)


# --- Wrong grammars ------------------------------------------------------------------------------

DEEP = "(" * 50_000
WRONG = [
    (Grammar.from_gbnf, "root ::= ("), (Grammar.from_gbnf, 'foo ::= "a"'),
    (Grammar.from_gbnf, "root ::= foo"), (Grammar.from_gbnf, 'root ::= "\\'),
    (Grammar.from_gbnf, 'root ::= "\\ud800"'), (Grammar.from_gbnf, "root ::= " + DEEP),
    (Grammar.from_gbnf, ""), (Grammar.from_gbnf, None), (Grammar.from_gbnf, "x" * (MAX_TEXT + 1)),
    (Grammar.from_lark, 'foo: "a"'), (Grammar.from_lark, "start: " + DEEP),
    (Grammar.from_lark, "start: bar"), (Grammar.from_lark, b"start"),
    (Grammar.from_regex, "(a"), (Grammar.from_regex, "(?=a)b"), (Grammar.from_regex, DEEP),
    (Grammar.from_regex, "a\ud800"), (Grammar.from_lark, 'start: "\ud800"'),
    (Grammar.from_gbnf, 'root ::= "\ud800"'), (Grammar.from_json_schema, '{"const": "\ud800"}'),
    (Grammar.from_json_schema, {"const": "\ud800"}), (Grammar.from_regex, 5),
    (Grammar.from_regex, "a" * (MAX_TEXT + 1)),
    (Grammar.from_json_schema, "{"), (Grammar.from_json_schema, "5"),
    (Grammar.from_json_schema, 5), (Grammar.from_json_schema, None),
    (Grammar.from_json_schema, {"type": "strange"}), (Grammar.from_json_schema, False),
    (Grammar.from_json_schema, {"type": "string", "const": 5}),
    (Grammar.from_json_schema, {"type": "array", "uniqueItems": True}),
    (Grammar.from_json_schema, {"$ref": "https://example.com/x.json"}),
    (Grammar.from_json_schema, '{"items":' * 50_000 + "{}" + "}" * 50_000),
    (Grammar.from_json_schema, {"type": "number", "maximum": "ü" * 200}),  # Rust panics
    (Grammar.from_lark, "start: " + 60_000 * '"a" '), (Grammar.from_lark, "%llguidance {"),
    (Grammar.from_json_schema, {"a": {1, 2}}), (Grammar.from_json_schema, {"a": object}),
    (Grammar.from_json_schema,
     {"allOf": [{"anyOf": [{"properties": {f"{p}{i}": {"const": 1}}} for p in "ab"]}
                for i in range(24)]}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given"), WRONG, ids=lambda value: repr(value)[:40])
def test_a_wrong_grammar_is_refused_before_anything_is_written(make, given):
    with pytest.raises(GrammarError) as caught:
        make(given)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "schema",
    [
        {"multipleOf": 1234567}, {"multipleOf": 0.1234567}, {"multipleOf": 100_000},
        {"multipleOf": 1e300}, {"anyOf": [{"multipleOf": 0.001}, {"multipleOf": 11}]},
        {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
        {"properties": {"a": {"items": {"multipleOf": 10**400}}}},
    ],
    ids=str,
)  # fmt: skip
def test_multiples_that_need_a_large_parser_are_refused(schema):
    with pytest.raises(GrammarError, match="multipleOf"):
        Grammar.from_json_schema(schema)
    with pytest.raises(GrammarError, match="multipleOf"):
        Grammar.from_lark(f"start: %json {json.dumps(schema)}")


def test_small_multiples_are_allowed():
    grammar = Grammar.from_json_schema({"type": "number", "multipleOf": 0.05, "minimum": 0})

    assert is_of(tokenizer_of("qwen2"), grammar, "3.15")
    assert not is_of(tokenizer_of("qwen2"), grammar, "3.16")
    with pytest.raises(GrammarError, match="multiple"):
        Grammar.from_json_schema({"multipleOf": 0})


def test_a_grammar_of_no_text_ends_in_an_error():
    with pytest.raises(GrammarError, match="Lark"):
        written(tokenizer_of("qwen2"), Grammar.from_lark("start: a\na: b\nb: a"), 0)


def test_a_grammar_without_an_end_goes_on():
    endless = Grammar.from_lark('start: "x" a\na: "y" a')
    text, complete = written(tokenizer_of("qwen2"), endless, 0, maximum=30)

    assert re.fullmatch("xy*", text)
    assert not complete


LARGE = "\n".join([f"x{i} ::= x{i + 1} x{i + 1}" for i in range(40)] + ['x40 ::= "ab" "a"?'])


FORCING = '%llguidance {"no_forcing": false}\n'
PAIRS = "start: " + "x " * 15_000 + '\nx: "' + "ab" * 15_000 + '"'  # 450 MB
HUGE = {
    "doubled": lambda: Grammar.from_gbnf(f"root ::= x0\n{LARGE}"),  # 2 ** 40 letters
    "long": lambda: Grammar.from_lark(PAIRS),
    "asked to force": lambda: Grammar.from_lark(FORCING + PAIRS),
    "JSON": lambda: Grammar.from_json_schema(
        {"type": "array", "minItems": 10**6, "items": {"const": "a" * 10**5}}
    ),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_grammar_of_one_huge_text_takes_little_memory(name):
    """llguidance must not build the whole text in memory; the grammar ``doubled`` is refused."""
    written(tokenizer_of("qwen2"), Grammar.from_regex("abc"), 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name == "doubled":
        with pytest.raises(GrammarError, match="too big"):
            HUGE[name]()
    else:
        text, complete = written(tokenizer_of("qwen2"), HUGE[name](), 0, maximum=20)
        assert text
        assert not complete
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_the_tokens_of_what_must_follow_may_be_any():
    tokenizer = tokenizer_of("qwen2")
    mask = Constraint(Grammar.from_regex("abc"), tokenizer, 0).allowed([])
    wanted = [i for i in range(tokenizer.n_vocab) if tokenizer.piece(i) in (b"a", b"ab", b"abc")]

    assert np.flatnonzero(mask).tolist() == wanted


def test_an_expression_that_no_text_matches_ends_in_an_error():
    with pytest.raises(GrammarError, match="regex"):
        written(tokenizer_of("qwen2"), Grammar.from_regex("a[^\\x00-\\U0010FFFF]"), 0)


def test_a_history_that_is_not_of_the_grammar_is_an_error():
    tokenizer = tokenizer_of("qwen2")
    limit = Constraint(Grammar.from_regex("[ab]+"), tokenizer, 1)
    word = tokenizer.encode("c", add_bos=False)

    with pytest.raises(GrammarError, match="regex"):
        limit.allowed([5, *word])
    with pytest.raises(GrammarError):
        limit.allowed([5])  # every later call fails, too


def test_tokens_that_are_excluded_otherwise_are_named():
    tokenizer = tokenizer_of("qwen2")
    never = [i for i in range(tokenizer.n_vocab) if b"x" in tokenizer.piece(i)]
    with pytest.raises(GrammarError, match="excluded"):
        written(tokenizer, Grammar.from_regex("x"), 0, never=never)


def test_a_complete_text_ends_though_end_tokens_are_barred():
    tokenizer = tokenizer_of("qwen2")
    for pattern, wanted in (("abc", "abc"), ("(ab){1,2}", "abab")):
        options = {"ends": tokenizer.eog, "begins": 1000}
        assert written(tokenizer, Grammar.from_regex(pattern), 3, **options) == (wanted, True)


def test_a_tokenizer_without_end_tokens_ends_complete_texts(monkeypatch):
    with GGUF(FOLDER / "qwen2.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    tokenizer.eog = frozenset()

    assert written(tokenizer, Grammar.from_regex("(ab){1,2}"), 3) == ("abab", True)


def test_markup_is_written_only_where_lark_names_it():
    tokenizer = tokenizer_of("qwen2")
    [start] = [i for i in tokenizer.control if tokenizer.piece(i) == b"<|im_start|>"]
    grammar = Grammar.from_lark('start: <|im_start|> "a"')

    assert np.flatnonzero(Constraint(grammar, tokenizer, 0).allowed([])).tolist() == [start]
    free = Constraint(Grammar.from_regex("(?s:.)*"), tokenizer, 0).allowed([])
    assert not free[sorted(tokenizer.control - tokenizer.eog)].any()
    with pytest.raises(GrammarError, match="nope"):
        Constraint(Grammar.from_lark("start: <|nope|>"), tokenizer, 0).allowed([])


def test_a_panic_while_a_text_is_written_is_an_error(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(*_):
        raise PanicException("index out of range")

    limit = Constraint(Grammar.from_regex("a"), tokenizer_of("qwen2"), 0)
    monkeypatch.setattr(limit, "_advanced", panic)
    for call in (lambda: limit.allowed([]), lambda: limit.fits([], [5])):
        with pytest.raises(GrammarError, match="index out of range"):
            call()
    monkeypatch.setattr(limit, "_advanced", lambda *_: sys.exit(3))
    with pytest.raises(SystemExit):  # SystemExit is not a panic
        limit.allowed([])


# --- The package, threads and memory --------------------------------------------------------------


def test_without_the_package_the_remedy_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for make in (Grammar.from_gbnf, Grammar.from_lark, Grammar.from_regex):
        with pytest.raises(UnsupportedOp, match="llguidance") as caught:
            make('root ::= "a"')
        assert "llguidance" in caught.value.remedy
    with pytest.raises(UnsupportedOp, match="llguidance"):
        grammar_of(None, {"type": "json_object"})


def test_a_grammar_that_takes_too_long_is_an_error(monkeypatch):
    """No known grammar takes too long, so this test makes the thread wait."""
    go = threading.Event()
    monkeypatch.setattr(constraint, "SECONDS", 0.01)
    monkeypatch.setattr(Constraint, "_new_matcher", lambda self: go.wait(60))
    limit = Constraint(Grammar.from_regex("a"), tokenizer_of("qwen2"), 0)
    try:
        assert not limit.ready
        with pytest.raises(GrammarError, match="not ready"):
            limit.allowed([])
    finally:
        go.set()


def test_a_thread_makes_the_parser():
    limit = Constraint(Grammar.from_regex("a"), tokenizer_of("qwen2"), 0)
    while not limit.ready:
        time.sleep(0.001)
    assert limit.allowed([]).any()


def test_a_tokenizer_is_not_kept():
    with GGUF(FOLDER / "qwen2.gguf") as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    assert Constraint(Grammar.from_regex("a"), tokenizer, 0).allowed([]).any()
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()

    assert gone() is None


def _references(count):
    names = [f"a{i}" for i in range(count + 1)]
    chain = {a: {"$ref": f"#/$defs/{b}"} for a, b in pairwise(names)}
    return {"$defs": chain | {names[-1]: {"type": "integer"}}, "$ref": "#/$defs/a0"}


def _rules(count, name="r", more=""):
    lines = [f"{name}{i}: {name}{i + 1}{more}\n" for i in range(count)]
    return f"start: {name}0\n" + "".join(lines) + f'{name}{count}: "a"\n'


def _terminals(count):
    return _rules(count, "R", ' "b"')


@pytest.mark.parametrize(
    ("make", "chain"),
    [
        (Grammar.from_json_schema, _references),
        (Grammar.from_lark, _rules),
        (Grammar.from_lark, _terminals),
    ],
)
def test_long_chains_of_rules_are_refused(make, chain):
    """With longer chains, llguidance would exceed the stack and end the process."""
    assert make(chain(1000))
    with pytest.raises(GrammarError, match="above 1500"):
        make(chain(3000))
