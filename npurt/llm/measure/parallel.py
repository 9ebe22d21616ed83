"""Measure tokens per second of several sequences together, with the method of llama-batched-bench.

The tokens of prompts are random.  First all prompts except their last tokens are evaluated.  Then
all sequences are decoded together, from the cached prompts.  With a draft, each prompt ends with
one of the tasks of `bench_spec`, because the acceptance rate depends on the text.  A draft model
evaluates the prompts during decoding.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npurt.errors import SettingError
from npurt.llm.engine.engine import Engine
from npurt.llm.engine.events import Counts, Event
from npurt.llm.measure.speculation import PROMPTS
from npurt.runtime.report.ledger import Report

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def bench_parallel(
    path: str | os.PathLike[str],
    *,
    parallel: Sequence[int] = (1, 2, 4, 8),
    prompt: int = 512,
    generated: int = 128,
    shared: int = 0,
    repetitions: int = 3,
    draft: str | os.PathLike[str] | None = None,
    on_row: Callable[[dict[str, Any]], object] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], Report]:
    """Measure one model; return a row for each number of sequences, and the ledger.

    Args:
        parallel: Numbers of sequences.
        prompt: The number of tokens of each prompt.
        generated: The number of tokens to generate after each prompt.
        shared: The number of first tokens that are the same in all prompts.
        repetitions: Measured runs of each number of sequences.
        draft: As for `Engine`; rows then include the numbers of drafted and accepted tokens.
        on_row: A function that is called with each row as soon as it is measured.
        options: Other options of `Engine`.

    Raises:
        SettingError: There is nothing to measure.
    """
    if not parallel or min(repetitions, prompt - 1, generated) < 1 or not 0 <= shared < prompt:
        raise SettingError(
            f"cannot measure {list(parallel)} sequences with {prompt} prompt tokens, "
            f"{shared} of them shared, and {generated} generated tokens",
            remedy="use at least 1 sequence, 2 prompt tokens and 1 generated token",
        )
    maximum = max(parallel)
    ended = _Ends()
    options = {"n_ctx": prompt + generated, "prefixes": maximum + 1} | options
    with Engine(path, max_sequences=maximum, on_step=ended, draft=draft, **options) as engine:
        rows = []
        for count in parallel:
            prompts = [_ids(engine, prompt, shared, i) for i in range(count)]
            if draft:
                prompts = [_with_task(engine, ids, shared, i) for i, ids in enumerate(prompts)]
            _measure(engine, ended, [ids[-8:] for ids in prompts], 4)  # a warm-up
            before = engine.stats().counts
            samples = [_measure(engine, ended, prompts, generated) for _ in range(repetitions)]
            row = _row(engine, samples, count, prompt, generated, shared)
            if draft:
                row |= {"draft": Path(draft).name} | _accepted(before, engine.stats().counts, row)
            rows.append(row)
            if on_row:
                on_row(rows[-1])
        return rows, engine.llm.report()


class _Ends:
    """Records the time when each request ended."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def __call__(self, events: Iterable[Event]) -> None:
        now = time.perf_counter()
        self.times |= {event.id: now for event in events if event.finish}


def _ids(engine: Engine, count: int, shared: int, number: int) -> list[int]:
    """Return *count* random ids, the first *shared* of which do not depend on *number*."""
    n_vocab = engine.llm.config.n_vocab
    first = np.random.default_rng(0).integers(0, n_vocab, shared)
    rest = np.random.default_rng(1 + number).integers(0, n_vocab, count - shared)
    return [*first.tolist(), *rest.tolist()]


def _with_task(engine: Engine, ids: list[int], shared: int, number: int) -> list[int]:
    """Return *ids* with a task at the end, cut to the space after the *shared* tokens."""
    llm, task = engine.llm, list(PROMPTS.values())[number % len(PROMPTS)]
    if "tokenizer.chat_template" in llm.metadata:
        end = llm.apply_chat_template([{"role": "user", "content": task}])
    else:
        end = llm.tokenize(task)
    return ids[: max(shared, len(ids) - len(end))] + end[-(len(ids) - shared) :]


def _measure(
    engine: Engine, ended: _Ends, prompts: list[list[int]], generated: int
) -> tuple[float, float, float]:
    """Return the seconds of prefill and of decode, and slowest divided by fastest sequence."""
    seconds, spread = [], 1.0
    salt = str(time.monotonic_ns())  # excludes cached prefixes of other measurements
    for stop, count in ((-1, 1), (None, generated)):
        start = time.perf_counter()
        requests = [
            engine.submit(ids[:stop], GREEDY, max_tokens=count, salt=salt) for ids in prompts
        ]
        for request in requests:
            request.result()
        times = [ended.times[request.id] - start for request in requests]
        seconds.append(max(times))
        spread = max(times) / min(times)
    return seconds[0], seconds[1], spread


def _row(
    engine: Engine, samples: list[tuple[float, float, float]], count: int, prompt: int,
    generated: int, shared: int,
) -> dict[str, Any]:  # fmt: skip
    reading, writing, spread = (statistics.median(each) for each in zip(*samples, strict=True))
    return {
        "model": engine.llm.path.name,
        "device": engine.llm.device.caps.name,
        "detail": engine.llm.device.caps.detail,
        "threads": engine.llm.threads,
        "parallel": count,
        "prompt": prompt,
        "generated": generated,
        "shared_prefix": shared,
        "pp_tokens_per_s": count * (prompt - 1) / reading,
        "tg_tokens_per_s": count * generated / writing,
        "tokens_per_s": count * (prompt + generated) / (reading + writing),
        "spread": spread,
        "samples": samples,
    }


def _accepted(before: Counts, after: Counts, row: dict[str, Any]) -> dict[str, float | None]:
    """Return the numbers of drafted and accepted tokens between *before* and *after*."""
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    tokens = row["parallel"] * row["generated"] * len(row["samples"])
    return {
        "drafted": drafted,
        "accepted": accepted,
        "accept_rate": accepted / drafted if drafted else None,
        "accepted_length": tokens / (tokens - accepted),
    }
