"""Sampling flags, named as in llama-cli, and their conversion to options of the library.

Source: llama.cpp common/arg.cpp, MIT: names, defaults, and the form of a bias.
"""

import argparse
import re
from dataclasses import dataclass
from typing import Any

from npurt.cli.arguments.options import number, text_of, words

BIAS = re.compile(r"(\d+)([+-](?:inf|[0-9.]+(?:e[+-]?\d+)?))", re.IGNORECASE)
NOTHING = ("", '""')  # values that remove a grammar in /set
SWITCH = {"on": True, "1": True, "off": False, "0": False}

# Flags with one number: names, name of the option, type, default, metavar, help.
NUMBERS: tuple[tuple[tuple[str, ...], str, type, float, str, str], ...] = (
    (("--temp", "--temperature"), "temperature", float, 0.8, "T",
     "temperature; 0: always the most likely token"),
    (("--top-k",), "top_k", int, 40, "K", "keep the K most likely tokens; -1 or 0: all"),
    (("--top-p",), "top_p", float, 0.95, "P",
     "keep the most likely tokens up to this total probability"),
    (("--min-p",), "min_p", float, 0.05, "P",
     "drop tokens whose probability is below P times the highest one"),
    (("--typical", "--typical-p"), "typical_p", float, 1.0, "P",
     "keep the most typical tokens up to this total probability; 1: all"),
    (("--top-nsigma", "--top-n-sigma"), "top_n_sigma", float, -1.0, "N",
     "keep logits within N standard deviations of the highest; -1: all"),
    (("--xtc-probability",), "xtc_probability", float, 0.0, "P",
     "probability of dropping, at a token, all candidates above the XTC threshold but the least "
     "likely one"),
    (("--xtc-threshold",), "xtc_threshold", float, 0.1, "P",
     "minimum probability of the tokens that XTC may drop"),
    (("--repeat-last-n",), "repeat_last_n", int, 64, "N",
     "number of last tokens that the penalties consider; -1: all"),
    (("--repeat-penalty",), "repeat_penalty", float, 1.0, "X",
     "penalty for repeated tokens; 1: none"),
    (("--presence-penalty",), "presence_penalty", float, 0.0, "X",
     "penalty for tokens that occurred; 0: none"),
    (("--frequency-penalty",), "frequency_penalty", float, 0.0, "X",
     "penalty for each occurrence of a token; 0: none"),
    (("--dry-multiplier",), "dry_multiplier", float, 0.0, "X",
     "DRY: penalty for extending a repetition; 0: none"),
    (("--dry-base",), "dry_base", float, 1.75, "X",
     "DRY: factor of the penalty for each further token of the repetition"),
    (("--dry-allowed-length",), "dry_allowed_length", int, 2, "N",
     "DRY: length from which repetitions are penalised"),
    (("--dry-penalty-last-n",), "dry_penalty_last_n", int, 64, "N",
     "DRY: number of last tokens that are searched for repetitions; -1: all"),
)  # fmt: skip


@dataclass(frozen=True)
class GrammarArgument:
    """A grammar on the command line: GBNF or a JSON schema, as text or as the name of a file."""

    is_schema: bool
    is_file: bool
    text: str

    def __str__(self) -> str:
        return self.text

    def grammar(self) -> Any:
        """Return the grammar.

        Raises:
            GrammarError: The grammar or schema is invalid.
            NpurtError: The file cannot be read.
            UnsupportedOp: The package llguidance is not installed.
        """
        from npurt.llm.decode.grammar.grammar import Grammar

        text = text_of(self.text) if self.is_file else self.text
        return Grammar.from_json_schema(text) if self.is_schema else Grammar.from_gbnf(text)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags."""
    group = parser.add_argument_group("sampling")
    group.add_argument("-n", "--n-predict", type=number, metavar="N",
                       help="maximum number of tokens to generate; -1: no limit (default: "
                       "-1)")  # fmt: skip
    for flags, name, kind, default, sign, about in NUMBERS:
        group.add_argument(*flags, dest=name, type=kind, default=default, metavar=sign,
                           help=about)  # fmt: skip
    group.add_argument("--dry-sequence-breaker", dest="dry_sequence_breakers", action="append",
                       type=words, metavar="TEXT",
                       help="DRY: text that ends a repetition; may be repeated; none: no such text "
                       "(default: line feed, colon, quote and asterisk)")  # fmt: skip
    group.add_argument("-l", "--logit-bias", action="append", type=bias, metavar="TOKEN+BIAS",
                       help="add to the logit of a token id, as 15043+1 or 15043-inf; may be "
                       "repeated")  # fmt: skip
    group.add_argument("-s", "--seed", type=number, metavar="N",
                       help="seed of the random numbers; -1: a random seed "
                       "(default: -1)")  # fmt: skip
    group.add_argument("--stop", action="append", type=words, default=[], metavar="TEXT",
                       help="end the output before this text; may be repeated")  # fmt: skip
    group.add_argument("--ignore-eos", nargs="?", type=_switch, const=True, default=False,
                       metavar="on", help="never sample an end token")  # fmt: skip
    forms = group.add_mutually_exclusive_group()
    for flags, is_schema, is_file, sign, about in (
        (("--grammar",), False, False, "TEXT", "constrain the output to this grammar, in GBNF"),
        (("--grammar-file",), False, True, "FILE", "constrain the output to a grammar in a file"),
        (("-j", "--json-schema"), True, False, "JSON",
         "constrain the output to JSON of this schema, such as '{\"type\": \"object\"}'"),
        (("-jf", "--json-schema-file"), True, True, "FILE",
         "constrain the output to JSON of a schema in a file"),
    ):  # fmt: skip
        forms.add_argument(*flags, dest="grammar", metavar=sign, help=about,
                           type=_grammar_argument(is_schema, is_file))  # fmt: skip


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Llama.generate` and `Llama.chat`.

    Raises:
        NpurtError: A grammar is invalid, or its file cannot be read.
    """
    breakers = args.dry_sequence_breakers
    given = {name: getattr(args, name) for _, name, *_ in NUMBERS} | {
        "max_tokens": args.n_predict,
        "seed": args.seed,
        "stop": args.stop,
        "ignore_eos": args.ignore_eos,
        "logit_bias": dict(args.logit_bias or ()),
        "grammar": args.grammar and args.grammar.grammar(),
    }
    if breakers is not None:
        given["dry_sequence_breakers"] = [] if "none" in breakers else breakers
    return given


def check_sampling(args: argparse.Namespace) -> None:
    """Check the sampling settings.

    Raises:
        NpurtError: A setting is invalid.
    """
    from npurt.llm.decode.options import GenerationRequest

    GenerationRequest.of(sampling(args), None)


def bias(text: str) -> tuple[int, float]:
    """Parse ``TOKEN+BIAS`` or ``TOKEN-BIAS``; return the token id and the bias."""
    match = BIAS.fullmatch(text.replace(" ", ""))
    if match is None or match[2].lower() == "+inf":
        raise argparse.ArgumentTypeError(f"{text!r} is not TOKEN+BIAS or TOKEN-BIAS, as 15043+1")
    try:
        return int(match[1]), float(match[2])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{match[2]!r} is no number") from None


def _switch(text: str) -> bool:
    if text not in SWITCH:
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return SWITCH[text]


def _grammar_argument(is_schema: bool, is_file: bool) -> Any:
    def read(text: str) -> GrammarArgument | None:
        return None if text in NOTHING else GrammarArgument(is_schema, is_file, words(text))

    return read
