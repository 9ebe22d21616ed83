"""Measure tokens per second of prefill and decode, with the method of llama-bench.

The tokens are random, and nothing is sampled.  Each test has a warm-up run.  Each run begins with
an empty cache.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npurt.errors import SettingError
from npurt.llm.decode.llama import Llama
from npurt.runtime.report.ledger import Report


def bench(
    path: str | os.PathLike[str],
    *,
    prompts: Sequence[int] = (512,),
    generations: Sequence[int] = (128,),
    depth: int = 0,
    repetitions: int = 5,
    on_row: Callable[[dict[str, Any]], object] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], Report]:
    """Measure one model; return a row for each test, and the ledger.

    Args:
        prompts: Lengths of prefill; each is a test ``ppN``.
        generations: Lengths of decode; each is a test ``tgN``.
        depth: The number of tokens in the cache before each test.
        repetitions: Measured runs of each test.
        on_row: A function that is called with each row as soon as it is measured.
        options: The options of `Llama`.

    Raises:
        SettingError: There is nothing to measure.
    """
    if repetitions < 1 or depth < 0 or not (prompts or generations):
        raise SettingError(
            "there is nothing to measure", remedy="ask for at least one test and one repetition"
        )
    n_ctx = depth + max((*prompts, *generations))
    with Llama(path, n_ctx=n_ctx, **options) as llm:
        rows = []
        for kind, counts in (("pp", prompts), ("tg", generations)):
            for count in counts:
                rows.append(_row(llm, kind, count, depth, repetitions))
                if on_row:
                    on_row(rows[-1])
        return rows, llm.report()


def _row(llm: Llama, kind: str, count: int, depth: int, repetitions: int) -> dict[str, Any]:
    once = _prefill if kind == "pp" else _decode
    once(llm, min(count, 32), depth)
    rates = [count / once(llm, count, depth) for _ in range(repetitions)]
    tensors = llm.tensors
    return {
        "model": llm.path.name,
        "size": sum(t.nbytes for t in tensors),
        "parameters": sum(int(np.prod(t.shape)) for t in tensors),
        "device": llm.device.caps.name,
        "detail": llm.device.caps.detail,
        "threads": llm.threads,
        "test": f"{kind}{count}" + (f"@d{depth}" if depth else ""),
        "tokens_per_second": statistics.median(rates),
        "deviation": statistics.stdev(rates) if len(rates) > 1 else 0.0,
        "samples": rates,
    }


def _random_ids(llm: Llama, count: int) -> list[int]:
    rng = np.random.default_rng(count)
    return [int(i) for i in rng.integers(0, llm.config.n_vocab, count)]


def _prefill(llm: Llama, count: int, depth: int) -> float:
    """Return the seconds of evaluating *count* tokens in one call."""
    _fill(llm, depth)
    ids = _random_ids(llm, count)
    start = time.perf_counter()
    llm.eval_last(ids)
    return time.perf_counter() - start


def _decode(llm: Llama, count: int, depth: int) -> float:
    """Return the seconds of evaluating *count* tokens one by one."""
    _fill(llm, depth)
    ids = _random_ids(llm, count)
    start = time.perf_counter()
    for token in ids:
        llm.eval_last([token])
    return time.perf_counter() - start


def _fill(llm: Llama, depth: int) -> None:
    llm.reset()
    if depth:
        llm.eval_last(_random_ids(llm, depth))
