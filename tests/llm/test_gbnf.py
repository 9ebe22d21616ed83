"""Tests of GBNF: llama.cpp's syntax, grammars of several rules (oracle: `re`), and bounded time.

If the time grew with the square of a grammar's length, the tests of long grammars would exceed the
time limit that holds for all tests.
"""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import GrammarError
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.gbnf import lark_of
from npurt.llm.decode.grammar.grammar import MAX_RULES, MAX_TEXT, Grammar
from tests.llm.grammars import EXPRESSIONS, is_of, is_of_ids, tokenizer_of, written


def allowed(gbnf, *texts):
    grammar = Grammar.from_gbnf(gbnf)
    return [is_of(tokenizer_of("qwen2"), grammar, text) for text in texts]


# --- Syntax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbnf", "inside", "outside"),
    [
        ('root ::= start "b"\nstart ::= "a" | "(" start ")"', ["ab", "((a))b"], ["b", "a"]),
        ('root ::= "a" "b"{0}', ["a"], ["ab"]),
        ('root ::= "a" ("b" c){0,0} "d"{ 1 , 2 }\nc ::= "c"', ["ad", "add"], ["abcd", "a"]),
        ('root ::= "a"{2}{2} | "b"?*', ["aaaa", "", "bbb"], ["aa", "aaaaa"]),
        ('root ::= fooBar foo-bar foo_bar FOO\nfooBar ::= "1"\nfoo-bar ::= "2"\nfoo_bar ::= "3"\n'
         'FOO ::= "4"', ["1234"], ["1111", "4321"]),
        ('root ::= "a" | # one\n  "b" # two\n\nx ::= (\n"c"\n| "d" )\n', ["a", "b"], ["c"]),
        ('root ::= x\r\nx ::= "a"\r\nx ::= "b"', ["b"], ["a"]),  # the last definition counts
        ('root ::= | "a"', ["", "a"], ["b"]),
        ('root ::= [-+] [a-] [^\\]x-z]', ["-a!", "+--"], ["-a]", "-ay", "*a!"]),
        ('root ::= "a/b" [/] "\\x2f"', ["a/b//"], ["a/b/"]),
        ('root ::= x "ab"\nx ::= [a-z]+', ["zab", "abab"], ["ab", "z"]),
        ('root ::= ("a" | "ab") "bc"', ["abc", "abbc"], ["ab"]),
        ('%json ::= "a"'.replace("%json", "root") + ' "%json {\\n" "//"', ["a%json {\n//"], ["a"]),
    ],
)  # fmt: skip
def test_literal_texts(gbnf, inside, outside):
    assert allowed(gbnf, *inside) == [True] * len(inside)
    assert allowed(gbnf, *outside) == [False] * len(outside)


def test_each_character_may_be_written_in_a_text_and_in_a_set():
    points = [*range(0x100), 0x2028, 0xE9, 0x65E5, 0xD7FF, 0xE000, 0x1F600, 0x10FFFF]
    spelt = "".join(f"\\U{point:08X}" for point in points)
    text = "".join(map(chr, points))
    for inside in (spelt, text.replace("\\", "\\\\").replace('"', '\\"')):
        assert allowed(f'root ::= "{inside}"', text, text[1:]) == [True, False]
    grammar = f"root ::= [{spelt}]+"
    assert allowed(grammar, text, text + "\u0100") == [True, False]


@settings(max_examples=30, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.text("abcé 09-x", max_size=6), st.integers(0, 2**32))
def test_rules_are_exact_where_none_leads_to_itself(first, second, text, seed):
    """A text matches a sequence of two rules, wherever the text is divided between them."""
    gbnf = f"root ::= one two\none ::= {first.gbnf}\ntwo ::= {second.gbnf}"
    regex = first.regex + second.regex

    assert allowed(gbnf, text) == [bool(re.fullmatch(regex, text))]
    found, complete = written(tokenizer_of("qwen2"), Grammar.from_gbnf(gbnf), seed)
    assert complete
    assert re.fullmatch(regex, found)


def test_json_by_rules_that_lead_to_themselves():
    gbnf = r"""
    root ::= object
    value ::= object | array | string | number | ("true" | "false" | "null") ws
    object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
    array ::= "[" ws (value ("," ws value)*)? "]" ws
    string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
    number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
    ws ::= [ \t\n]*
    """.replace("\n    ", "\n")
    held = {"a": [1, -2.5e3, None, True], "é\n": {"b": "日本\\"}}

    assert allowed(gbnf, json.dumps(held), json.dumps(held, ensure_ascii=False, indent=1)) == [
        True, True,
    ]  # fmt: skip
    assert allowed(gbnf, json.dumps(held)[:-1], "[]", "{'a': 1}") == [False] * 3


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbnf", "why"),
    [
        ('root ::= root "a"', "matches no text"), ('root ::= "(" root ")"', "matches no text"),
        ('root ::= a | b\na ::= "x" b\nb ::= "y" a', "matches no text"),
        ('root ::= x{1,3}\nx ::= x', "matches no text"),
        ("root ::= [^\\x00-\\U0010FFFF]", "matches no text"),
        ('root ::= "a" [^\\x00-\\U0010FFFF] "b"', "matches no text"),
        ("root ::= foo", "no rule foo"), ('foo ::= "a"', "no rule root"), ("", "no rule root"),
        ('root ::= "a"\n | "b"', "line 2"), ('root ::= "a', "line 1"), ("root ::= [a", "line 1"),
        ('root ::= ("a"', "not closed"), ('root ::= "a")', "out of place"),
        ("root ::= *", "nothing is before"), ('root ::= "a" | {2}', "nothing is before"),
        ('root ::= "a"{2,1}', "larger number"), ("root ::= [z-a]", "larger character"),
        ("root ::= []", "empty"), ("root ::= [^]", "empty"), ('root ::= "\\q"', "no character"),
        ('root ::= "\\xg0"', "no character"), ('root ::= "\\ud800"', "no character"),
        ('root ::= "\\U00110000"', "no character"), ('root = "a"', "line 1"),
        ('root ::= "a"{1234567890}', "line 1"), ('root "a"', "begin with a name"),
        ("root ::= " + '("a" ' * 150 + ")" * 150, "too deeply"),
    ],
)  # fmt: skip
def test_the_error_says_what_is_wrong(gbnf, why):
    with pytest.raises(GrammarError, match=why) as caught:
        Grammar.from_gbnf(gbnf)
    assert len(str(caught.value)) < 400
    assert caught.value.remedy


def test_a_rule_without_end_may_be_left_out():
    assert allowed('root ::= "a" | x\nx ::= "b" x', "a") == [True]
    assert allowed('root ::= "a" x?\nx ::= "b" x', "a") == [True]


# --- Long texts -----------------------------------------------------------------------------------

MANY = MAX_TEXT - 20
LONG = {
    "sets that do not end": "root ::= " + "[" * MANY,
    "escapes": 'root ::= "' + '\\"' * (MANY // 2),
    "backslashes": 'root ::= "' + "\\" * MANY,
    "braces": 'root ::= "a"' + "{ " * (MANY // 2),
    "spaces": 'root ::= "a"{' + " " * MANY,
    "brackets": "root ::= " + "(" * MANY,
    "brackets that end": "root ::= " + "(" * (MANY // 2) + ")" * (MANY // 2),
    "question marks": 'root ::= "a"' + "?" * MANY,
    "line feeds": "root ::= (" + "\n" * MANY,
    "rules": "".join(f"r{i} ::= r{i + 1}\n" for i in range(MANY // 15)),
    "names": "root ::= " + " ".join(f"r{i}" for i in range(MANY // 7)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_texts_that_are_no_grammar_are_refused_soon(name):
    with pytest.raises(GrammarError):
        Grammar.from_gbnf(LONG[name])


def test_the_time_for_rules_grows_with_their_number_alone():
    """The rules are in the worst order: each pass over all rules would settle only one of them."""
    count = 12_000
    chain = "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(count))
    lark, _ = lark_of(f'root ::= r0\n{chain}r{count} ::= "c"\n', count + 2)

    assert lark.count("\n") == count + 3
    with pytest.raises(GrammarError, match=f"more than {MAX_RULES} rules"):
        Grammar.from_gbnf(f'root ::= r0\n{chain[: MAX_TEXT - 100]}\nx ::= "c"\n')


# --- Tokens ---------------------------------------------------------------------------------------


def ids_allowed(gbnf, *ids):
    return [is_of_ids(tokenizer_of("qwen2"), Grammar.from_gbnf(gbnf), each) for each in ids]


def test_tokens_are_named_by_their_text_or_id():
    tokenizer = tokenizer_of("qwen2")
    start = tokenizer.encode("<|im_start|>", add_bos=False)[0]
    assert start in tokenizer.control
    [a] = tokenizer.encode("a", add_bos=False)
    for name in ("<|im_start|>", f"<[{start}]>"):
        grammar = f'root ::= {name} x "a"\nx ::= "a"? # {name}'
        assert ids_allowed(grammar, [start, a], [start, a, a], [a], [a, a, a]) == [
            True, True, False, False,
        ]  # fmt: skip


def test_another_token_than_the_named_one_is_matched_by_an_exclamation_mark():
    tokenizer = tokenizer_of("qwen2")
    [start] = tokenizer.encode("<|im_start|>", add_bos=False)
    [a] = tokenizer.encode("a", add_bos=False)
    grammar = "root ::= think* <|im_start|> [b]?\nthink ::= !<|im_start|>"
    assert ids_allowed(grammar, [start], [a, 300, a, start], [start, start]) == [
        True, True, False,
    ]  # fmt: skip


def test_text_before_and_after_a_token_is_matched_as_usual():
    tokenizer = tokenizer_of("qwen2")
    [start] = tokenizer.encode("<|im_start|>", add_bos=False)
    grammar = 'root ::= words <|im_start|> words\nwords ::= [a-z]+ ("-" [a-z]+)*'
    for before, after, wanted in (("ab-c", "d", True), ("ab-", "d", False), ("", "d", False)):
        ids = [*tokenizer.encode(before, add_bos=False), start]
        ids += tokenizer.encode(after, add_bos=False)
        assert ids_allowed(grammar, ids) == [wanted]


@pytest.mark.parametrize(
    ("name", "says"),
    [("<thinking>", "no single token of this model"), ("<[608]>", "the model has 608 tokens")],
)
def test_a_token_that_the_model_lacks_is_refused(name, says):
    grammar = Grammar.from_gbnf(f'root ::= "a" {name}')
    with pytest.raises(GrammarError, match=says) as caught:
        Constraint(grammar, tokenizer_of("qwen2"), 0)
    assert name in caught.value.what


@pytest.mark.parametrize("gbnf", ["root ::= <", "root ::= <a b>", "root ::= !a", "root ::= <[x]>"])
def test_what_is_no_token_is_refused(gbnf):
    with pytest.raises(GrammarError, match="out of place"):
        Grammar.from_gbnf(gbnf)


def test_a_grammar_with_tokens_generates_them():
    tokenizer = tokenizer_of("qwen2")
    grammar = Grammar.from_gbnf('root ::= "a" <|im_start|> "b"')
    text, complete = written(tokenizer, grammar, 1)
    assert complete
    assert text == "a<|im_start|>b"
