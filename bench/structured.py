"""Time structured output with a model's vocabulary: building grammars, masks and samples.

Usage: python bench/structured.py [models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf] [--json]

Logits are random. The last three grammars are at the limits of the parser.
"""

import argparse
import json
import resource
import time

import numpy as np

from npurt.errors import GrammarError
from npurt.llm.decode.grammar.constraint import Constraint
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.grammar.multiples import MAX_STATES
from npurt.llm.decode.grammar.vocabulary import vocabulary_of
from npurt.llm.decode.sampler import NO_TOKEN, Sampling, TokenSampler
from npurt.llm.file.gguf import GGUF
from npurt.llm.text.tokenizer import Tokenizer

MODEL = "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 8},
    },
    "required": ["name", "age", "tags"],
}
GRAMMARS = {
    "JSON object": Grammar.json_object(),
    "JSON schema": Grammar.from_json_schema(PERSON),
    "regex": Grammar.from_regex(r"[A-Z][a-z]+( [A-Z][a-z]+)*, [0-9]{1,3}"),
    "GBNF": Grammar.from_gbnf('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"'),
    "400 patterns": Grammar.from_json_schema(
        {"properties": {f"p{i}": {"pattern": f"^[a-z]{{1,{i + 1}}}x{i}$"} for i in range(400)}}
    ),
    "largest multiple": Grammar.from_json_schema({"multipleOf": MAX_STATES - 1}),
    "40,000 strings": Grammar.from_lark("start: " + " ".join(['"a"'] * 40_000)),
}
TOKENS = 200


def main() -> None:
    """Measure all grammars and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    arguments = parser.parse_args()
    with GGUF(arguments.model) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    before, start = _memory(), time.perf_counter()
    vocabulary_of(tokenizer).result()
    found = {"vocabulary": {"seconds": round(time.perf_counter() - start, 2),
                            "megabytes": round(_memory() - before)}}  # fmt: skip
    for name, grammar in GRAMMARS.items():
        found[name] = _times(tokenizer, grammar)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, each in found.items():
        print(f"{name:18}", each)


def _times(tokenizer: Tokenizer, grammar: Grammar) -> dict[str, object]:
    """Return milliseconds until *grammar* is ready, and microseconds per mask and per sample."""
    start = time.perf_counter()
    constraint = Constraint(grammar, tokenizer, 0)
    constraint.fits([], [])
    found: dict[str, object] = {"ready_ms": round((time.perf_counter() - start) * 1e3, 1)}
    random = np.random.default_rng(0)
    sampler = TokenSampler(Sampling(seed=1), constraint=constraint)
    free = TokenSampler(Sampling(seed=1))
    masks, samples, plain = [], [], []
    history: list[int] = []
    try:
        while len(history) < TOKENS:
            logits = random.standard_normal(tokenizer.n_vocab).astype(np.float32)
            times = [time.perf_counter()]
            constraint.allowed(history)
            times.append(time.perf_counter())
            token = sampler.sample(logits, history)
            times.append(time.perf_counter())
            free.sample(logits, history)
            times.append(time.perf_counter())
            for each, seconds in zip((masks, samples, plain), np.diff(times), strict=True):
                each.append(seconds * 1e6)
            if token == NO_TOKEN or token in tokenizer.eog:
                break
            history.append(token)
    except GrammarError as error:
        found["error"] = error.what
        found["after_ms"] = round((time.perf_counter() - times[0]) * 1e3, 1)
    if masks:
        found["mask_us"] = [round(float(np.percentile(masks, p))) for p in (50, 95, 100)]
        found["sample_us"] = round(float(np.median(samples)))
        found["without_us"] = round(float(np.median(plain)))
    return found


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
