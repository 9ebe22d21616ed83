"""Measure the latency of an engine's requests with a cached prefix and during a long prefill.

    python bench/engine_latency.py models/SmolLM2-135M-Instruct.Q4_1.gguf
    python bench/engine_latency.py MODEL --prefix 400 --prompt 1000 --rounds 7 --json

The first ratio is the time to the first token for a cached prefix with 20 new tokens, divided by
the time for the 20 tokens alone. The second ratio is the 95th percentile of the time between tokens
of eight sequences during the prefill of a prompt, divided by that without the prefill.
"""

import argparse
import itertools
import json
import statistics
import time

from tqdm import tqdm

import npurt

GREEDY = {"temperature": 0, "ignore_eos": True}
TEXTS, NEW = 8, 20
GAPS = 100  # times between tokens to measure before the long prompt


def ids(engine, count, seed):
    return [(seed + i * 7919) % engine.llm.config.n_vocab for i in range(count)]


def first_token(engine, prompt, salt=""):
    start = time.perf_counter()
    engine.submit(prompt, GREEDY, max_tokens=1, salt=salt).result()
    return time.perf_counter() - start


def known_prefix(engine, count, rounds):
    """Return seconds to the first token: prefix not cached, prefix cached, without prefix."""
    prefix = ids(engine, count, 0)
    cold, known, alone = first_token(engine, prefix), [], []
    for i in tqdm(range(rounds), "known prefix", leave=False):
        new = ids(engine, NEW, 1 + i)
        known.append(first_token(engine, [*prefix, *new]))
        alone.append(first_token(engine, new, salt=f"round {i}"))
    return {
        "prefix": count, "new": NEW, "cold_s": cold, "known_s": statistics.median(known),
        "alone_s": statistics.median(alone),
        "ratio": statistics.median(a / b for a, b in zip(known, alone, strict=True)),
        "samples": [known, alone],
    }  # fmt: skip


def beside_a_prompt(engine, steps, count):
    """Return percentiles of the time between tokens during and before a prompt's prefill."""
    steps.clear()
    tokens = engine.llm.n_ctx - 3
    requests = [engine.submit([1 + i] * 3, GREEDY, max_tokens=tokens) for i in range(TEXTS)]
    numbers = {request.id for request in requests}
    while sum(having >= numbers for _, having in steps) <= GAPS:
        time.sleep(0.01)
    start = time.perf_counter()
    first_token(engine, ids(engine, count, 12345), salt="beside")
    end = time.perf_counter()
    for request in requests:
        request.cancel()
        request.result()
    times = [at for at, having in steps if having >= numbers]
    gaps = [(b, b - a) for a, b in itertools.pairwise(times) if b <= end]
    before = [gap for at, gap in gaps if at < start][5:]
    beside = [gap for at, gap in gaps if at >= start]
    return {
        "prompt": count, "texts": TEXTS, "prompt_s": end - start, "gaps_before": len(before),
        "gaps_beside": len(beside), "p95_before_s": p95(before), "p95_beside_s": p95(beside),
        "ratio": p95(beside) / p95(before),
    }  # fmt: skip


def p95(values):
    return sorted(values)[int(0.95 * (len(values) - 1))]


def say(known, beside):
    print(f"{known['prefix']} tokens not cached: {1000 * known['cold_s']:.0f} ms; "
          f"cached and {NEW} new: "
          f"{1000 * known['known_s']:.0f} ms, {known['ratio']:.2f} times {NEW} alone\n"
          f"95th percentile between tokens of {TEXTS} texts: {1000 * beside['p95_before_s']:.0f} "
          f"ms; beside a prompt of {beside['prompt']} tokens {1000 * beside['p95_beside_s']:.0f} "
          f"ms ({beside['gaps_beside']} gaps), {beside['ratio']:.2f} times as long")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prefix", type=int, default=2000, help="tokens of the cached prefix")
    parser.add_argument(
        "--prompt",
        type=int,
        default=4000,
        help="tokens of the long prompt",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    args = parser.parse_args()
    steps = []

    def stepped(events):
        steps.append((time.perf_counter(), {event.id for event in events if event.tokens}))

    n_ctx = max(args.prefix + NEW, args.prompt) + 1024
    with npurt.Engine(
        args.model, "cpu", n_ctx=n_ctx, max_sequences=TEXTS + 1, draft=None, on_step=stepped
    ) as engine:
        first_token(engine, ids(engine, NEW, 99), "warm-up")
        known = known_prefix(engine, args.prefix, args.rounds)
        beside = beside_a_prompt(engine, steps, args.prompt)
    if args.json:
        print(json.dumps({"model": args.model, "known prefix": known, "beside a prompt": beside}))
    else:
        say(known, beside)


if __name__ == "__main__":
    main()
