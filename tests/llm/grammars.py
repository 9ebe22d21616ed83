"""Helpers for tests of grammars: generate random texts of a grammar, and check texts against it."""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.vocabulary import GrammarVocabulary
from npurt.llm.decode.sampler import NO_TOKEN, Sampling, TokenSampler
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "data/tokenizer"
NAMES = ("llama-bpe", "qwen2", "sentencepiece", "crossing")
WILD = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PROMPT = [1, 2, 3]


@cache
def tokenizer_of(name):
    with GGUF(FOLDER / f"{name}.gguf") as file:
        return Tokenizer.from_gguf(file.metadata)


def written(tokenizer, grammar, seed, maximum=400, **options):
    """Generate a text with random logits; return it and whether it is complete."""
    random = np.random.default_rng(seed)
    sampler = TokenSampler(
        Sampling(**WILD, seed=seed),
        constraint=Constraint(grammar, tokenizer, len(PROMPT)),
        **options,
    )
    history, stream = list(PROMPT), tokenizer.stream(special=True, continued=True)
    text = ""
    for _ in range(maximum):
        # 3 more logits than tokens
        logits = random.standard_normal(tokenizer.n_vocab + 3).astype(np.float32)
        token = sampler.sample(logits, history)
        if token == NO_TOKEN or token in tokenizer.eog:
            return text + stream.finish(), True
        history.append(token)
        text += stream.push(token)
    return text, False


def is_of(tokenizer, grammar, text):
    """Return whether the grammar accepts *text*, as single bytes and as the encoded tokens."""
    known = {(is_of_ids(tokenizer, grammar, ids)) for ids in spellings(tokenizer, text)}
    assert len(known) == 1
    return known.pop()


def is_of_ids(tokenizer, grammar, ids):
    limit = Constraint(grammar, tokenizer, 0)
    if limit.fits([], ids) < len(ids):
        return False
    mask = limit.allowed(ids)
    return mask is None or bool(mask[sorted(tokenizer.eog)].all())


def spellings(tokenizer, text):
    """Return token sequences whose bytes are those of *text*."""
    encoded = tokenizer.encode(text, add_bos=False, special=False)
    spelt = [GrammarVocabulary(tokenizer)(text)]
    if b"".join(map(tokenizer.piece, encoded)) == text.encode():  # no space is added
        spelt.append(encoded)
    return spelt


# --- Random expressions --------------------------------------------------------------------------


class Node:
    """An expression in three syntaxes: `re` (also used by llguidance), GBNF and Lark."""

    def __init__(self, regex, gbnf, lark):
        self.regex, self.gbnf, self.lark = regex, gbnf, lark


def literal(text):
    quoted = json.dumps(text, ensure_ascii=False)
    return Node(re.escape(text), quoted, quoted)


def repeated(node, minimum, more):
    end = f"{{{minimum},{minimum + more}}}"
    return Node(*(f"({each}){end}" for each in (node.regex, node.gbnf, node.lark)))


def joined(nodes, mark):
    forms = zip(*((n.regex, n.gbnf, n.lark) for n in nodes), strict=True)
    regex, gbnf, lark = forms
    return Node(
        "(" + mark.strip().join(regex) + ")", *("(" + mark.join(f) + ")" for f in (gbnf, lark))
    )


CLASSES = [Node(c, c, f"/{c}/") for c in ("[a-c]", "[0-9]", "[^a-z]", "[à-ü]", "[ x]")]
LEAVES = st.one_of(
    st.text('abcé日 -"\\{}', min_size=1, max_size=4).map(literal), st.sampled_from(CLASSES)
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda nodes: joined(nodes, " ")),
        st.lists(inner, min_size=2, max_size=3).map(lambda nodes: joined(nodes, " | ")),
        st.tuples(inner, st.integers(0, 2), st.integers(1, 2)).map(lambda t: repeated(*t)),
    ),
    max_leaves=6,
)
FORMS = {
    "regex": lambda node: Grammar.from_regex(node.regex),
    "GBNF": lambda node: Grammar.from_gbnf(f"root ::= {node.gbnf}"),
    "Lark": lambda node: Grammar.from_lark(f"start: {node.lark}"),
}
