"""Check that an engine's memory does not grow over many requests and that all pages are freed.

    python bench/soak_engine.py [--model FILE] [--requests 10000] [--json]

The requests are of all kinds, and up to twelve are open at a time: prompts with common prefixes and
without, greedy and sampled, with stop strings, log probabilities and grammars; some are cancelled,
some refused, and some miss their deadline. Memory is the kernel's resident set size (VmRSS),
measured without a garbage collection.
"""

import argparse
import json
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

from tqdm import tqdm

import npurt
from npurt.errors import NpurtError
from npurt.llm.engine.engine import Engine
from npurt.llm.engine.request import Request

TINY = Path(__file__).resolve().parents[1] / "tests/data/models/llama3/llama3-q8_0.gguf"
TENTHS = 10  # parts of the requests; the memory is measured after each
AT_A_TIME = 12  # open requests, more than the engine's sequences
SEQUENCES, PREFIXES = 8, 16
POSITIONS = 256
BEGINNINGS = 20  # number of different prefixes of prompts


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def submit(engine: Engine, chance: random.Random) -> Request:
    """Submit a request of a random kind."""
    n_vocab = engine.llm.config.n_vocab
    beginning = random.Random(chance.randrange(BEGINNINGS))
    ids = [beginning.randrange(n_vocab) for _ in range(100)]
    ids += [chance.randrange(n_vocab) for _ in range(chance.randrange(1, 40))]
    options: dict[str, Any] = {"max_tokens": chance.randrange(1, 16), "seed": chance.randrange(99)}
    options |= chance.choice([
        {"temperature": 0}, {}, {"top_k": 5, "repeat_penalty": 1.1}, {"logprobs": 3},
        {"stop": ["e", "the"]}, {"ignore_eos": True}, {"deadline": 1e-4}, {"max_tokens": 10**6},
        {"grammar": 'root ::= "yes" | "no"'}, {"logits_processor": [broken]},
    ])  # fmt: skip
    request = engine.submit(ids, salt=chance.choice(["", "another"]), **options)
    if chance.random() < 0.1:
        request.cancel()
    return request


def broken(ids: Any, logits: Any) -> Any:
    """Raise an error, as a user's logits processor may."""
    raise ValueError("this processor fails")


def ended(request: Request) -> str:
    """Wait for the end of a request; return its finish reason, or "error"."""
    try:
        return request.result().finish
    except (NpurtError, ValueError):
        return "error"


def soak(model: Path, requests: int) -> dict[str, Any]:
    """Submit *requests* requests and wait for them; return figures of memory and pages."""
    chance = random.Random(0)
    points = [requests * (i + 1) // TENTHS for i in range(TENTHS)]
    memory: list[int] = []
    finishes: dict[str, int] = {}
    with npurt.Llama(
        model, "cpu", n_ctx=POSITIONS, max_sequences=SEQUENCES + PREFIXES + 2, progress=False
    ) as llm:
        with Engine(llm, max_sequences=SEQUENCES, prefixes=PREFIXES) as engine:
            under_way: deque[Request] = deque()
            for number in tqdm(range(1, requests + 1), "requests", leave=False):
                under_way.append(submit(engine, chance))
                last = number in points
                while under_way and (last or len(under_way) == AT_A_TIME):
                    how = ended(under_way.popleft())
                    finishes[how] = finishes.get(how, 0) + 1
                if last:
                    memory.append(resident())
            stats = engine.stats()
        capacity = llm.model.executor.capacity()
        left = capacity.total - capacity.free if capacity else 0
    return {
        "model": model.name, "requests": requests, "finishes": finishes,
        "rss": memory, "growth": memory[-1] / memory[0] - 1,
        "pages_of_kept_texts": stats.used, "kept_texts": stats.prefixes, "running": stats.running,
        "preempted": stats.counts.preempted, "pages_in_use_at_the_end": left,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory of an engine over many requests.")
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.requests < TENTHS:
        parser.error(f"--requests: {args.requests} are too few")
    found = soak(args.model, args.requests)
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in found.items()))
    return 0 if not found["pages_in_use_at_the_end"] else 1


if __name__ == "__main__":
    sys.exit(main())
