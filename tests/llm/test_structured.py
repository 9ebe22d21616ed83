"""Tests of structured output: `Llama.generate`, `Llama.chat`, with and without drafts."""

import json
import re

import jsonschema
import pytest

import npurt
from npurt.errors import GrammarError, SettingError
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.spec.controller import Controller
from tests.llm import tiny
from tests.llm.conftest import GREEDY, PROMPT, fresh, open_tiny

WILD = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 100}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999},
                 "minItems": 1, "maxItems": 2},
        "kind": {"enum": ["a", "bb", None]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Who?"}]
TARGET = tiny.MODELS / "spec/spec-target-qwen3-q8_0.gguf"
DRAFTS = {
    "lookup": "lookup",
    "model": tiny.MODELS / "spec/spec-draft-qwen3-q8_0.gguf",
    "block": tiny.MODELS / "spec/spec-dflash-qwen3-q8_0.gguf",
}


@pytest.mark.parametrize("model", ["llama3", "qwen2", "qwen3moe", "qwen35"])
def test_whatever_a_random_model_writes_is_of_the_schema(model):
    with open_tiny(model, "q8_0", n_ctx=160) as llm:
        for seed in range(8):
            text = fresh(llm, response_format=FORMAT, seed=seed, **WILD)
            assert llm.timing.finish == "end"
            jsonschema.validate(json.loads(text), SCHEMA)


def test_a_grammar_is_one_of_a_text_of_a_prompt_and_of_a_stream(llm):
    grammar = npurt.Grammar.from_regex("[a-z]{3}-[0-9]{2,4}")
    for seed in range(5):
        text = fresh(llm, grammar=grammar, seed=seed, **WILD)
        pieces = fresh(llm, grammar=grammar, seed=seed, stream=True, **WILD)
        assert "".join(pieces) == text
        assert re.fullmatch("[a-z]{3}-[0-9]{2,4}", text)
    text = llm.chat(MESSAGES, grammar='root ::= "yes" | "no"', seed=1, **WILD)
    assert text in ("yes", "no")
    assert llm.chat(MESSAGES, response_format={"type": "json_object"}, **WILD).startswith("{")


def test_the_likeliest_allowed_token_is_taken_at_temperature_0(llm):
    """The expected token has the highest logit of all tokens of one digit."""
    ids = [i for i in range(llm.tokenizer.n_vocab) if llm.tokenizer.piece(i) in b"0123456789"]
    ids = [i for i in ids if len(llm.tokenizer.piece(i)) == 1]
    llm.reset()
    row = llm.eval_last(PROMPT)
    best = max(ids, key=lambda token: row[token])

    text = fresh(llm, grammar='root ::= [0-9] "x"', **GREEDY)
    assert text == llm.tokenizer.piece(best).decode() + "x"
    assert fresh(llm, grammar='root ::= [0-9] "x"', repeat_penalty=1.001, **GREEDY) == text


@pytest.mark.parametrize("options", [WILD, {**GREEDY, "max_tokens": 100}], ids=["wild", "greedy"])
@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_changes_no_structured_text(kind, options):
    formats = [{"response_format": FORMAT}, {"grammar": 'root ::= ("ab" | "ac ")+ "."'}]
    wanted, got = [], []
    with npurt.Llama(TARGET, n_ctx=160, progress=False) as llm:
        for seed in range(3):
            wanted += [fresh(llm, seed=seed, **each, **options) for each in formats]
    with npurt.Llama(TARGET, n_ctx=160, progress=False, draft=DRAFTS[kind]) as llm:
        at_once, drafted, accepted = llm.speculator.drafter.at_once, 0, 0
        for seed in range(3):
            for each in formats:
                llm.speculator.controller = Controller(4, fixed=True, at_once=at_once)
                got.append(fresh(llm, seed=seed, **each, **options))
                drafted += llm.timing.speculation.drafted
                accepted += llm.timing.speculation.accepted
    assert got == wanted
    assert drafted > 0
    assert accepted > 0 or kind == "block"  # that drafter was trained on other data


def test_draft_tokens_that_a_grammar_does_not_allow_are_not_evaluated(monkeypatch):
    """The lookup repeats the prompt, which is no JSON."""
    prompt, options = [5, 6, 7, 8] * 6, {"seed": 1, "response_format": FORMAT, **WILD}
    with npurt.Llama(TARGET, n_ctx=160, progress=False, draft="lookup") as llm:
        counts = []
        for fits in (Constraint.fits, lambda self, history, draft: len(draft)):
            monkeypatch.setattr(Constraint, "fits", fits)
            llm.speculator.controller = Controller(4, fixed=True)
            text = fresh(llm, prompt, **options)
            counts.append((text, llm.timing.speculation.drafted))
    assert counts[0][0] == counts[1][0]
    assert counts[0][1] < counts[1][1]


def test_a_grammar_without_an_end_ends_one_text_alone(llm):
    endless = npurt.Grammar.from_lark('start: "a" /[^\\x00-\\U0010FFFF]/')
    with pytest.raises(GrammarError, match="the Lark allows no next token"):
        llm.generate(PROMPT, grammar=endless)
    stream = llm.generate(PROMPT, grammar=npurt.Grammar.from_lark("start: <|nope|>"), stream=True)
    with pytest.raises(GrammarError, match="nope"):
        next(stream)

    assert fresh(llm, max_tokens=3, **GREEDY) == fresh(llm, max_tokens=3, **GREEDY)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"grammar": "root ::= ("}, GrammarError),
        ({"grammar": 5}, SettingError),
        ({"response_format": {"type": "xml"}}, SettingError),
        ({"response_format": {"type": "json_object", "schema": {"type": "x"}}}, GrammarError),
        ({"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}}, SettingError),
    ],
    ids=str,
)
def test_wrong_grammars_are_refused_before_the_prompt_is_read(llm, options, error):
    llm.reset()
    for call in (lambda: llm.generate(PROMPT, **options), lambda: llm.chat(MESSAGES, **options)):
        with pytest.raises(error):
            call()
    assert llm.n_tokens == 0


def test_options_of_length_do_not_leave_the_grammar(llm):
    """A complete output ends even if options forbid end tokens; a cut output is a valid prefix."""
    for options in ({"ignore_eos": True}, {"min_tokens": 50}):
        assert fresh(llm, grammar='root ::= "abc"', **options, **WILD) == "abc"
        assert llm.timing.finish == "end"
    text = fresh(llm, grammar='root ::= "abc"+', ignore_eos=True, **(WILD | {"max_tokens": 7}))
    assert ("abc" * 50).startswith(text)
    assert llm.timing.finish == "length"


def test_biases_that_exclude_all_that_is_allowed_are_named(llm):
    ids = [i for i in range(llm.tokenizer.n_vocab) if b"x" in llm.tokenizer.piece(i)]
    bias = dict.fromkeys(ids, float("-inf"))
    with pytest.raises(GrammarError, match="excluded") as caught:
        llm.generate(PROMPT, grammar='root ::= "x"', logit_bias=bias)
    assert "logit_bias" in caught.value.remedy


def test_a_text_that_is_continued_later_goes_on_as_it_would_have(llm):
    """The allowed tokens depend only on the sequence, not on earlier calls."""
    grammar = npurt.Grammar.from_regex("([a-c]x)+")
    limit = Constraint(grammar, llm.tokenizer, len(PROMPT))
    whole = [*PROMPT, *llm.tokenizer.encode("axbxcx", add_bos=False)]
    masks = [limit.allowed(whole[:end]) for end in range(len(PROMPT), len(whole) + 1)]
    again = [limit.allowed(whole[:end]) for end in reversed(range(len(PROMPT), len(whole) + 1))]

    assert all((a == b).all() for a, b in zip(masks, reversed(again), strict=True))


def test_a_grammar_of_one_text_of_an_engine_changes_no_other():
    options = {"response_format": FORMAT, **WILD}
    with open_tiny(n_ctx=160) as llm:
        alone = [fresh(llm, seed=seed, **options) for seed in range(3)]
    with npurt.Engine(tiny.path("llama3", "q8_0"), max_sequences=4) as engine:
        endless = npurt.Grammar.from_lark('start: "a" /[^\\x00-\\U0010FFFF]/')
        broken = engine.submit(PROMPT, grammar=endless, **WILD)
        requests = [engine.submit(PROMPT, seed=seed, **options) for seed in range(3)]

        assert [request.text() for request in requests] == alone
        with pytest.raises(GrammarError, match="allows no next token"):
            broken.text()


@pytest.mark.parametrize(
    ("make", "text"),
    [(npurt.Grammar.from_regex, "\ud800"), (npurt.Grammar.from_gbnf, 'root ::= "\ud800"'),
     (npurt.Grammar.from_lark, 'start: "\ud800"')],
)  # fmt: skip
def test_a_lone_surrogate_in_a_grammar_is_named(make, text):
    with pytest.raises(GrammarError, match=f"character {text.index(chr(0xD800))} of .* surrogate"):
        make(text)
