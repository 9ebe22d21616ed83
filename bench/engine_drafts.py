"""Measure what draft tokens gain with several sequences at once: decode with and without, in turn.

    python bench/engine_drafts.py MODEL DRAFT [--parallel 1 4 8] [--tokens 96] [--rounds 2]

DRAFT is `lookup`, or the file of a draft model. The prompts ask for programs. Each round decodes
the same prompts with an engine that uses draft tokens and with one that does not; the ratio is that
of the median speeds.
"""

import argparse
import json
import statistics
import time

import npurt

TASKS = ("quicksort", "merge sort", "binary search", "a prime sieve", "the greatest common divisor",
         "matrix multiplication", "Fibonacci numbers", "breadth-first search")  # fmt: skip


def decode(engine, count, tokens):
    """Return tokens per second of decoding *count* sequences, and the completions."""
    requests = [
        engine.chat(
            [{"role": "user", "content": f"Write {TASKS[i % len(TASKS)]} in Python."}],
            max_tokens=tokens, temperature=0, ignore_eos=True, salt=str(time.monotonic()),
        )
        for i in range(count)
    ]  # fmt: skip
    first, texts = [], []
    for request in requests:
        events = iter(request)
        text = [*next(events).tokens]
        first.append(time.perf_counter())
        texts.append((text, events))
    for text, events in texts:
        for event in events:
            text.extend(event.tokens)
    seconds = time.perf_counter() - max(first)
    return (tokens - 1) * count / seconds, [text for text, _ in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("draft")
    parser.add_argument("--parallel", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    options = {
        "device": "cpu", "n_ctx": 1024, "max_sequences": max(args.parallel), "progress": False,
        "kv_bytes": 1 << 30, "prefixes": 0,
    }  # fmt: skip
    with (
        npurt.Engine(args.model, draft=None, **options) as plain,
        npurt.Engine(args.model, draft=args.draft, **options) as drafting,
    ):
        for count in args.parallel:
            speeds = {plain: [], drafting: []}
            before = drafting.stats().counts
            for _ in range(args.rounds):
                texts = []
                for engine, found in speeds.items():
                    speed, text = decode(engine, count, args.tokens)
                    found.append(speed)
                    texts.append(text)
                assert texts[0] == texts[1], "a draft changed a completion"
            after = drafting.stats().counts
            row = {"parallel": count}
            for name, engine in (("plain", plain), ("drafting", drafting)):
                row[f"{name}_tokens_per_s"] = round(statistics.median(speeds[engine]), 1)
            row["ratio"] = round(row["drafting_tokens_per_s"] / row["plain_tokens_per_s"], 3)
            row["drafted"] = after.drafted - before.drafted
            row["accepted"] = after.accepted - before.accepted
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
