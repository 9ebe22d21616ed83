"""Tests of cuts by case (o200k, tekken), against a program that reads one letter at a time."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from npurt.llm.text.pretokenize import rule

UPPER, LOWER = {"Lu", "Lt", "Lm", "Lo", "Mn", "Mc", "Me"}, {"Ll", "Lm", "Lo", "Mn", "Mc", "Me"}
ENGLISH = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def run(text, at, wanted):
    """Return the end of the run of characters from *at* for which *wanted* holds."""
    while at < len(text) and wanted(text[at]):
        at += 1
    return at


def is_a(kinds):
    return lambda c: unicodedata.category(c) in kinds


def is_letter(c):
    return unicodedata.category(c)[0] == "L"


def is_number(c):
    return unicodedata.category(c)[0] == "N"


def is_sign(c):
    return not (c.isspace() or is_letter(c) or is_number(c))


def ending(text, at, english):
    rest = text[at:].lower()
    found = [e for e in ENGLISH if english and rest.startswith(e)]
    return at + len(found[0]) if found else at


def word(text, at, english):
    """Return the end of a word at *at*: upper case, then lower case; *at* if there is no word."""
    end = run(text, at, is_a(UPPER))
    low = run(text, end, is_a(LOWER))
    if low == end:  # the word ends after its last character that may be lower case
        both = [i for i in range(at, end) if unicodedata.category(text[i]) in LOWER]
        low = both[-1] + 1 if both else at
    return ending(text, low, english) if low > at else at


def shout(text, at, english):
    """Return the end of upper case and of any lower case after it; *at* if there is none."""
    end = run(text, at, is_a(UPPER))
    return ending(text, run(text, end, is_a(LOWER)), english) if end > at else at


def length(text, at, digits, english):
    """Return the end of the piece that begins at *at*."""
    c = text[at]
    leads = c not in "\r\n" and not is_letter(c) and not is_number(c)
    for kind in (word, shout):
        for start in ([at + 1] if leads else []) + [at]:
            end = kind(text, start, english) if start < len(text) else start
            if end > start:
                return end
    if is_number(c):
        return min(run(text, at, is_number), at + digits)
    start = at + (c == " " and at + 1 < len(text) and is_sign(text[at + 1]))
    if is_sign(text[start]):
        return run(text, run(text, start, is_sign), lambda c: c in "\r\n/")
    end = run(text, at, str.isspace)
    newlines = [i for i in range(at, end) if text[i] in "\r\n"]
    if newlines:
        return newlines[-1] + 1
    return end if end == len(text) or end == at + 1 else end - 1


def cut(text, digits, english):
    pieces, at = [], 0
    while at < len(text):
        end = length(text, at, digits, english)
        pieces.append(text[at:end])
        at = end
    return pieces


letters = st.sampled_from("abzABZ\u00e9\u00c9\u01c5\u02b0\u4f60\u0915\u0301\u093e")
others = st.sampled_from(" \t\n\r\u00a0/.,'!-_12\u0663\u2167")
words = st.sampled_from(["'S", "'re", "  ", "Hello"])
texts = st.lists(st.one_of(letters, others, words)).map("".join)


@pytest.mark.parametrize(("pre", "digits", "english"), [("gpt-4o", 3, True), ("tekken", 1, False)])
@given(texts)
@example("fooBar HTTPServer don't DON'T I'll 12345 a/b//\n  x\n\n  y ")
@example("\u0301a \u0301A\u0301B\u0301 \u4f60\u597dAb")
def test_words_are_cut_where_case_changes(pre, digits, english, text):
    (pattern,) = rule(pre).patterns
    split = pre_tokenizers.Split(Regex(pattern), "isolated")

    pieces = [piece for piece, _ in split.pre_tokenize_str(text)]

    assert pieces == cut(text, digits, english)


def test_known_cuts():
    split = pre_tokenizers.Split(Regex(rule("gpt-4o").patterns[0]), "isolated")

    pieces = [piece for piece, _ in split.pre_tokenize_str("getHTTPResponse isn't 2024/05 OK\n")]

    assert pieces == ["get", "HTTPResponse", " isn't", " ", "202", "4", "/", "05", " OK", "\n"]
