"""Fuzz grammars, schemas and expressions: bounded time and memory, and JSON that fits its schema.

Random logits choose the tokens of the text.
"""

import contextlib
import json
import re

import jsonschema
import numpy as np

from npurt.llm.decode.grammar import grammar
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.sampler import NO_TOKEN, Sampling, TokenSampler
from tests.fuzz import jsons
from tests.llm.grammars import tokenizer_of

RUNS = 400
SECONDS = 5
TOKENS = 40

TOKENIZERS = ("llama-bpe", "qwen2", "sentencepiece")
NUMBERS = (0, 1, 2, 3, 7, -1, 64, 999, 4096, 1 << 20, 10**6 + 3, 10**9, 1 << 64, 10**30, 0.5, 0.001,
           0.1234567, 1e308, 1e-9)  # fmt: skip
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "x")
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object", "strange")
ATOMS = (".", "a", "[a-c]", "[^a]", "\\d", "\\w", "\\s", "ä", "\\p{L}", "^", "$", "\\b", "(?i:a)",
         "[[:alpha:]]", "\\x41", "\\u00e4", "(?=a)", "\\1", "(", "[", "*", "")  # fmt: skip
TIMES = ("", "", "*", "+", "?", "{3}", "{0,9}", "{1,1000}", "{1000}", "*?", "{,", "{9999999}")
LONG = (
    lambda rng: "(" * rng.choice((200, 50_000)),
    lambda rng: "(a|aa)*(b|bb)*c?" * rng.choice((20, 2000)),
    lambda rng: "(x{1,1000}){1,1000}",
    lambda rng: ".*a.{" + str(rng.choice((20, 200, 20_000))) + "}",
    lambda rng: "(a|b)*a(a|b){" + str(rng.choice((20, 60))) + "}",
    lambda rng: "a" * rng.choice((1000, 300_000)),
)


def mutate(rng):
    kind = rng.choice(("schema", "schema", "schema", "regex", "gbnf", "lark"))
    made = {"schema": schema, "regex": regex, "gbnf": gbnf, "lark": lark}[kind](rng, 3)
    if kind == "schema" and rng.random() < 0.2:
        made = jsons.changed(rng, made, rng.randrange(1, 4))
    if kind == "schema" and rng.random() < 0.02:
        made = jsons.deep("dict", rng.choice((100, 20_000)))
    return {"kind": kind, "text": made, "tokenizer": rng.choice(TOKENIZERS),
            "noise": rng.randrange(1 << 30)}  # fmt: skip


def schema(rng, depth):
    """Return a schema, usually of keywords that are valid together."""
    inner = (lambda: schema(rng, depth - 1)) if depth else (lambda: {"type": rng.choice(TYPES[:5])})
    number = lambda: rng.choice(NUMBERS)  # noqa: E731
    few = range(rng.randrange(1, 4))
    name = lambda: rng.choice(("a", "b", "c", "", '"', "é"))  # noqa: E731
    return rng.choice((
        lambda: {"type": rng.choice(TYPES)},
        lambda: {"type": "string", "minLength": number(), "maxLength": number()},
        lambda: {"type": "string", "maxLength": rng.randrange(9)},
        lambda: {"type": "string", "pattern": regex(rng, depth)},
        lambda: {"type": "string", "format": rng.choice(FORMATS)},
        lambda: {"type": rng.choice(TYPES[1:3]), "minimum": number(), "maximum": number()},
        lambda: {"type": "integer", "multipleOf": number(), "exclusiveMinimum": number()},
        lambda: {"type": "array", "items": inner(), "minItems": number(), "maxItems": number()},
        lambda: {"type": "array", "prefixItems": [inner() for _ in few], "items": False},
        lambda: {"type": "array", "items": inner(), "maxItems": rng.randrange(4)},
        lambda: {"type": "object", "properties": {name(): inner() for _ in few},
                 "required": [name()], "additionalProperties": rng.choice((True, False, {}))},
        lambda: {"type": "object", "properties": {name(): inner() for _ in few},
                 "additionalProperties": False},
        lambda: {"anyOf": [inner() for _ in few]},
        lambda: {"oneOf": [inner() for _ in few]},
        lambda: {"allOf": [inner() for _ in few]},
        lambda: {"allOf": [{"anyOf": [inner() for _ in few]} for _ in range(rng.choice((2, 20)))]},
        lambda: {"enum": [rng.choice((None, True, *NUMBERS, "a", "é\n")) for _ in few]},
        lambda: {"enum": [f"v{i}" for i in range(rng.choice((3, 5000)))]},
        lambda: {"const": rng.choice((None, 1, "ä", [1, {"a": None}], {}))},
        lambda: {"$ref": rng.choice(("#", "#/$defs/a", "#/$defs/none", "http://x/y"))},
        lambda: {"$defs": {"a": inner()}, "properties": {"a": {"$ref": "#/$defs/a"}}},
        lambda: {"patternProperties": {regex(rng, 1): inner()}},
        lambda: {"x-guidance": {rng.choice(("whitespace_pattern", "item_separator", "x")): "a*"},
                 "type": "object"},
    ))()  # fmt: skip


def regex(rng, depth):
    """Return a regular expression, sometimes a large one."""
    if rng.random() < 0.05:
        return rng.choice(LONG)(rng)
    parts = []
    for _ in range(rng.randrange(1, 4)):
        inner = f"({regex(rng, depth - 1)})" if depth and rng.random() < 0.4 else rng.choice(ATOMS)
        parts.append(inner + rng.choice(TIMES))
    return rng.choice(("", "|")).join(parts)


GBNF_ATOMS = ('"a"', '"é"', '"\\\\n"', "[a-c]", "[^a-c]", "[\\\\u00e0-\\\\u00fc]", ".", "x", "y",
              '""', '"', "[", "(", "{", "<think>", "# c", "undefined")  # fmt: skip


def gbnf(rng, depth):
    """Return rules that refer to each other."""
    return "\n".join(f"{name} ::= {_choice(rng, depth, GBNF_ATOMS)}" for name in ("root", "x", "y"))


LARK_ATOMS = ('"a"', '"é"', "/[a-c]+/", "/.{0,9}/", "x", "y", "TERM", "<|im_start|>", "<|nope|>",
              '%json {"type": "integer", "multipleOf": 1000003}', '%json {"type": "boolean"}',
              "x[max_tokens=3]", '"', "(", "~", "%regex {}")  # fmt: skip


def lark(rng, depth):
    """Return rules that refer to each other, in Lark."""
    rules = [f"{name}: {_choice(rng, depth, LARK_ATOMS)}" for name in ("start", "x", "y", "TERM")]
    return "\n".join(rules) + "\n"


def _choice(rng, depth, atoms):
    if rng.random() < 0.02:
        return rng.choice(("(" * 30_000, '"a" ' * 30_000, "x " * 30_000))
    options = []
    for _ in range(rng.randrange(1, 4)):
        words = []
        for _ in range(rng.randrange(1, 4)):
            known = atoms[: rng.choice((4, 9, len(atoms)))]
            nested = depth and rng.random() < 0.2
            word = f"({_choice(rng, depth - 1, atoms)})" if nested else rng.choice(known)
            words.append(word + rng.choice(TIMES[:7]))
        options.append(" ".join(words))
    return " | ".join(options)


def run(value):
    make = {"schema": Grammar.from_json_schema, "regex": Grammar.from_regex,
            "gbnf": Grammar.from_gbnf, "lark": Grammar.from_lark}[value["kind"]]  # fmt: skip
    made = make(value["text"])
    tokenizer = tokenizer_of(value["tokenizer"])
    random = np.random.default_rng(value["noise"])
    sampler = TokenSampler(Sampling(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=1),
                      constraint=Constraint(made, tokenizer, 0))  # fmt: skip
    history, stream, text = [], tokenizer.stream(continued=True), ""
    while len(history) < TOKENS:
        logits = random.standard_normal(tokenizer.n_vocab).astype(np.float32)
        token = sampler.sample(logits, history)
        if token == NO_TOKEN or token in tokenizer.eog:
            check(value, text + stream.finish())
            return "complete"
        history.append(token)
        text += stream.push(token)
    return "cut"


def check(value, text):
    """Check a complete text with jsonschema, for schemas that jsonschema interprets alike."""
    schema = value["text"]
    if value["kind"] != "schema" or "x-guidance" in str(schema):
        return
    held = json.loads(text)
    if isinstance(schema, dict) and not re.search(r"pattern|format|\$", str(schema)):
        with contextlib.suppress(jsonschema.SchemaError):
            if large(schema) is None:
                jsonschema.validate(held, schema)


def large(schema):
    """Return a number that jsonschema, which computes in float64, cannot compare exactly."""
    found = re.findall(r"[-\d.e+]*\d", json.dumps(schema))
    return next((each for each in found if abs(float(each)) > 2**53 or "e" in each), None)


def panicking():
    """Let panics of Rust through, which are not an `Exception`."""
    grammar.no_panic = contextlib.nullcontext


PLANTED = {"panicking": panicking}
