"""Flags of sampling, named as in llama-cli, and the library's options for them.

Source: llama.cpp common/arg.cpp, MIT: names, defaults, and the form of a bias.
"""

import argparse
import re
from dataclasses import dataclass
from typing import Any

from npurt.cli.arguments.options import number, text_of, words

BIAS = re.compile(r"(\d+)([+-](?:inf|[0-9.]+(?:e[+-]?\d+)?))", re.IGNORECASE)
NOTHING = ("", '""')  # what takes a grammar back in /set
SWITCH = {"on": True, "1": True, "off": False, "0": False}

# Flags with one number: names, name of the option, type, default, sign of the value, help.
NUMBERS: tuple[tuple[tuple[str, ...], str, type, float, str, str], ...] = (
    (("--temp", "--temperature"), "temperature", float, 0.8, "T",
     "0: the likeliest token each time"),
    (("--top-k",), "top_k", int, 40, "K", "keep the K likeliest; -1 or 0: all"),
    (("--top-p",), "top_p", float, 0.95, "P",
     "keep the likeliest tokens up to this total probability"),
    (("--min-p",), "min_p", float, 0.05, "P",
     "drop tokens less likely than this share of the likeliest"),
    (("--typical", "--typical-p"), "typical_p", float, 1.0, "P",
     "keep the most typical tokens up to this total probability; 1: all"),
    (("--top-nsigma", "--top-n-sigma"), "top_n_sigma", float, -1.0, "N",
     "keep logits within N standard deviations of the best; -1: all"),
    (("--xtc-probability",), "xtc_probability", float, 0.0, "P",
     "how often all but the worst of the likely tokens are dropped"),
    (("--xtc-threshold",), "xtc_threshold", float, 0.1, "P", "probability of a likely token"),
    (("--repeat-last-n",), "repeat_last_n", int, 64, "N",
     "tokens that penalties look at; -1: all"),
    (("--repeat-penalty",), "repeat_penalty", float, 1.0, "X", "1: none"),
    (("--presence-penalty",), "presence_penalty", float, 0.0, "X", "0: none"),
    (("--frequency-penalty",), "frequency_penalty", float, 0.0, "X", "0: none"),
    (("--dry-multiplier",), "dry_multiplier", float, 0.0, "X",
     "penalty for prolonging a repetition; 0: none"),
    (("--dry-base",), "dry_base", float, 1.75, "X",
     "what each further token multiplies it by"),
    (("--dry-allowed-length",), "dry_allowed_length", int, 2, "N",
     "length from which repetitions are penalised"),
    (("--dry-penalty-last-n",), "dry_penalty_last_n", int, 64, "N",
     "tokens that it looks at; -1: all"),
)  # fmt: skip


@dataclass(frozen=True)
class GrammarArgument:
    """What a text must be: where it comes from, GBNF or a JSON schema, itself or its file."""

    is_schema: bool
    is_file: bool
    text: str

    def __str__(self) -> str:
        return self.text

    def grammar(self) -> Any:
        """Return the grammar.

        Raises:
            GrammarError: It is wrong.
            NpurtError: The file cannot be read.
            UnsupportedOp: The package for it is not installed.
        """
        from npurt.llm.decode.grammar.grammar import Grammar

        text = text_of(self.text) if self.is_file else self.text
        return Grammar.from_json_schema(text) if self.is_schema else Grammar.from_gbnf(text)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags of sampling."""
    group = parser.add_argument_group("sampling")
    group.add_argument("-n", "--n-predict", type=number, metavar="N",
                       help="most tokens to generate; -1: no limit (default: -1)")  # fmt: skip
    for flags, name, kind, default, sign, about in NUMBERS:
        group.add_argument(*flags, dest=name, type=kind, default=default, metavar=sign,
                           help=about)  # fmt: skip
    group.add_argument("--dry-sequence-breaker", dest="dry_sequence_breakers", action="append",
                       type=words, metavar="TEXT",
                       help="text that ends a repetition; may be repeated; none: no such text "
                       "(default: line feed, colon, quote and asterisk)")  # fmt: skip
    group.add_argument("-l", "--logit-bias", action="append", type=bias, metavar="TOKEN+BIAS",
                       help="add to the logit of a token id, as 15043+1 or 15043-inf; may be "
                       "repeated")  # fmt: skip
    group.add_argument("-s", "--seed", type=number, metavar="N",
                       help="seed of the random numbers; -1: a new one each time "
                       "(default: -1)")  # fmt: skip
    group.add_argument("--stop", action="append", type=words, default=[], metavar="TEXT",
                       help="stop at this text and leave it out; may be repeated")  # fmt: skip
    group.add_argument("--ignore-eos", nargs="?", type=_switch, const=True, default=False,
                       metavar="on", help="never sample an end token")  # fmt: skip
    forms = group.add_mutually_exclusive_group()
    for flags, is_schema, is_file, sign, about in (
        (("--grammar",), False, False, "TEXT", "write a text of this grammar, in GBNF"),
        (("--grammar-file",), False, True, "FILE", "the same, from a file"),
        (("-j", "--json-schema"), True, False, "JSON",
         "write JSON of this schema, as '{\"type\": \"object\"}'"),
        (("-jf", "--json-schema-file"), True, True, "FILE", "the same, from a file"),
    ):  # fmt: skip
        forms.add_argument(*flags, dest="grammar", metavar=sign, help=about,
                           type=_grammar_argument(is_schema, is_file))  # fmt: skip


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Llama.generate` and `Llama.chat`.

    Raises:
        NpurtError: A grammar is wrong, or its file cannot be read.
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
    """Refuse settings of sampling that make no sense.

    Raises:
        NpurtError: One makes none.
    """
    from npurt.llm.decode.options import Request

    Request.of(sampling(args), None)


def bias(text: str) -> tuple[int, float]:
    """Return the token and the bias of ``TOKEN+BIAS`` or ``TOKEN-BIAS``."""
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
