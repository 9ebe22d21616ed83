"""Flags of sampling and of structured output are the library's options, named as in llama-cli."""

import dataclasses
import json
import re

import pytest

from npurt.cli import parser
from npurt.cli.arguments import sampling
from npurt.errors import GrammarError, NpurtError
from npurt.llm.decode.samplers.settings import Sampling
from tests.cli.conftest import assert_failed, assert_usage
from tests.llm import tiny

MODEL = tiny.path("llama3", "q8_0")
RUN = ("run", "-m", MODEL, "-p", "Hello")
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
# llama-cli's flags as in its help, values other than the defaults, and the library's options.
FLAGS = {
    "--typical": ("0.9", {"typical_p": 0.9}),
    "--typical-p": ("0.9", {"typical_p": 0.9}),
    "--top-nsigma": ("1.5", {"top_n_sigma": 1.5}),
    "--top-n-sigma": ("1.5", {"top_n_sigma": 1.5}),
    "--xtc-probability": ("0.5", {"xtc_probability": 0.5}),
    "--xtc-threshold": ("0.2", {"xtc_threshold": 0.2}),
    "--repeat-last-n": ("-1", {"repeat_last_n": -1}),
    "--repeat-penalty": ("1.1", {"repeat_penalty": 1.1}),
    "--presence-penalty": ("-0.5", {"presence_penalty": -0.5}),
    "--frequency-penalty": ("0.5", {"frequency_penalty": 0.5}),
    "--dry-multiplier": ("0.8", {"dry_multiplier": 0.8}),
    "--dry-base": ("2", {"dry_base": 2.0}),
    "--dry-allowed-length": ("3", {"dry_allowed_length": 3}),
    "--dry-penalty-last-n": ("-1", {"dry_penalty_last_n": -1}),
    "--dry-sequence-breaker": ("x", {"dry_sequence_breakers": ["x"]}),
    "--logit-bias": ("15043+1.5", {"logit_bias": {15043: 1.5}}),
    "-l": ("15043-inf", {"logit_bias": {15043: float("-inf")}}),
    "--ignore-eos": (None, {"ignore_eos": True}),
}


def parsed(*flags):
    return sampling.sampling(parser().parse_args([str(word) for word in (*RUN, *flags)]))


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_is_an_option_and_changes_no_other(flag):
    value, wanted = FLAGS[flag]
    usual = parsed()

    assert parsed(flag, *([] if value is None else [value])) == usual | wanted
    (name,) = wanted
    assert usual.get(name) != wanted[name]


def test_the_defaults_are_those_of_the_library():
    usual = {field.name: field.default for field in dataclasses.fields(Sampling)}
    for _, name, kind, default, *_ in sampling.NUMBERS:
        assert (type(usual[name]), usual[name]) == (kind, default)


def test_several_biases_and_breakers_are_kept_and_none_is_no_breaker():
    given = parsed("-l", "5+1", "-l", "7-2", "--dry-sequence-breaker", "a",
                   "--dry-sequence-breaker", "b")  # fmt: skip

    assert given["logit_bias"] == {5: 1.0, 7: -2.0}
    assert given["dry_sequence_breakers"] == ["a", "b"]
    assert parsed("--dry-sequence-breaker", "none")["dry_sequence_breakers"] == []


@pytest.mark.parametrize("text", ["5", "5*2", "+1", "x+1", "5+x", "5+inf", "5+1.2.3", "5-"])
def test_what_is_no_bias_is_refused(npurt, text):
    assert_usage(npurt(*RUN, "-l", text), "is not TOKEN+BIAS" if text != "5+1.2.3" else "no number")


def test_top_k_of_minus_one_keeps_all(npurt):
    texts = [npurt(*RUN, "--temp", 4, "-n", 8, "--seed", 3, "--top-k", k) for k in (-1, 0, 1)]

    assert [each.code for each in texts] == [0, 0, 0]
    assert texts[0].out == texts[1].out != texts[2].out


@pytest.mark.parametrize("form", ["grammar", "grammar-file", "json-schema", "json-schema-file"])
def test_what_is_written_has_the_form_that_was_asked_for(npurt, tmp_path, form):
    file = tmp_path / "form"
    text = json.dumps(SCHEMA) if "json" in form else 'root ::= [a-c]{3} "é"'
    file.write_text(text, "utf-8")
    result = npurt(*RUN, f"--{form}", file if "file" in form else text, "--temp", 4, "-n", 80,
                   "--top-k", 0, "--seed", 3)  # fmt: skip

    assert result.code == 0
    if "json" in form:
        assert json.loads(result.out) in ({"a": 1}, {"a": 22})
    else:
        assert re.fullmatch("[a-c]{3}é", result.out.strip())


def test_the_short_names_are_those_of_llama_cli():
    assert parsed("-j", json.dumps(SCHEMA)) == parsed("--json-schema", json.dumps(SCHEMA))
    with pytest.raises(NpurtError, match="cannot read"):
        parsed("-jf", "/there/is/no/such/file")
    assert parsed("--grammar", "")["grammar"] is None


def test_a_wrong_grammar_is_refused_before_the_model_is_opened(npurt):
    """The model does not exist, yet the error is about the grammar."""
    nowhere = ("run", "-m", "/there/is/no/such.gguf", "-p", "Hello")
    for flags, said in (
        (("--grammar", "root ::= ("), "the grammar is not GBNF"),
        (("-j", "{"), "the JSON schema is wrong"),
        (("-j", '{"type": "strange"}'), "the JSON schema, at #/type, is wrong"),
    ):
        assert_failed(npurt(*nowhere, *flags), said)
        with pytest.raises(GrammarError):
            parsed(*flags)
    assert_usage(npurt(*RUN, "--grammar", "x", "-j", "{}"), "not allowed with")
