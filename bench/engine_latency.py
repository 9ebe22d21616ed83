"""How long requests of an engine wait: after a prefix that is known, and beside a long prompt.

python bench/engine_latency.py models/SmolLM2-135M-Instruct.Q4_1.gguf [--prefix 400 --rounds 7]

The first ratio is the time to the first token of a known prefix and 20 tokens, by that of the 20
tokens alone.  The second one is the 95th percentile of the time between tokens of eight texts while
a prompt of the prefix's length is read, by that without.
"""

import argparse
import itertools
import statistics
import time

import npurt

GREEDY = {"temperature": 0, "ignore_eos": True}
TEXTS, TOKENS, NEW = 8, 200, 20


def ids(count, seed):
    return [(seed + i * 7919) % 40000 for i in range(count)]


def first_token(engine, prompt, salt=""):
    start = time.perf_counter()
    engine.submit(prompt, GREEDY, max_tokens=1, salt=salt).result()
    return time.perf_counter() - start


def known_prefix(engine, prefix, rounds):
    cold = first_token(engine, prefix)
    known, alone = [], []
    for i in range(rounds):
        new = ids(NEW, i)
        known.append(first_token(engine, [*prefix, *new]))
        alone.append(first_token(engine, new, salt=f"round {i}"))
    ratio = statistics.median(a / b for a, b in zip(known, alone, strict=True))
    print(f"{len(prefix)} tokens cold: {1000 * cold:.0f} ms; known and {NEW} new: "
          f"{1000 * statistics.median(known):.0f} ms, {ratio:.2f} times {NEW} alone")  # fmt: skip


def beside_a_prompt(engine, steps, prompt):
    steps.clear()
    requests = [engine.submit([1 + i] * 3, GREEDY, max_tokens=TOKENS) for i in range(TEXTS)]
    while len(steps) < TOKENS // 2:
        time.sleep(0.01)
    start = time.perf_counter()
    first_token(engine, prompt, salt="beside")
    end = time.perf_counter()
    numbers = {request.id for request in requests if request.result()}
    times = [at for at, having in steps if having >= numbers][5:]
    gaps = [(b, b - a) for a, b in itertools.pairwise(times)]
    reading = p95([gap for at, gap in gaps if start <= at <= end])
    others = p95([gap for at, gap in gaps if not start <= at <= end])
    print(f"95th percentile between tokens of {TEXTS} texts: {1000 * others:.0f} ms; beside a "
          f"prompt of {len(prompt)} tokens {1000 * reading:.0f} ms, {reading / others:.2f} times "
          "as long")  # fmt: skip


def p95(values):
    return sorted(values)[int(0.95 * (len(values) - 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prefix", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    steps = []

    def stepped(events):
        steps.append((time.perf_counter(), {event.id for event in events if event.tokens}))

    n_ctx = max(args.prefix + NEW, TOKENS + 3) + 8
    with npurt.Engine(
        args.model, "cpu", n_ctx=n_ctx, max_sequences=TEXTS + 1, draft=None, on_step=stepped
    ) as engine:
        first_token(engine, ids(NEW, 99), "warm-up")
        known_prefix(engine, ids(args.prefix, 0), args.rounds)
        beside_a_prompt(engine, steps, ids(args.prefix, 12345))


if __name__ == "__main__":
    main()
