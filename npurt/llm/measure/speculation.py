"""Measure speculative decoding with fixed and chosen draft lengths, against plain decoding.

Decoding is greedy, so all runs of a prompt generate the same text.  Runs are interleaved, and a
speedup is the median of the ratios in each round: if the machine becomes slower, all runs of a
round become slower.  The first three prompts are those of ggml-org/llama.cpp pull request 25166.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npurt.errors import SettingError
from npurt.llm.decode.llama import Llama
from npurt.llm.spec.speculation import Speculation
from npurt.llm.spec.speculator import Speculator

EDIT = '''Rename the variable n to count and repeat the whole file, nothing else:

def mean(values):
    """Return the mean of values."""
    n = len(values)
    if n == 0:
        raise ValueError("no values")
    return sum(values) / n


def variance(values):
    """Return the variance of values."""
    n = len(values)
    if n < 2:
        raise ValueError("fewer than two values")
    m = mean(values)
    return sum((v - m) ** 2 for v in values) / (n - 1)
'''
PROMPTS = {
    "quicksort": "Write a quicksort algorithm in Python. Write code only.",
    "Pythagorean": "Explain the Pythagorean theorem",
    "DC trip": "Plan a 1 day trip to DC",
    "edit": EDIT,
}
ROOM = 1024  # positions for a prompt; the longest one has about 600 bytes and a chat template
PLAIN, AUTO = 0, -1  # values for a draft length: no draft; length chosen by the controller


@dataclass(frozen=True, slots=True)
class _Run:
    """The result of one run."""

    text: str
    tokens: int
    rate: float  # tokens per second
    seconds: float  # seconds of prefill and decode
    said: Speculation


def bench_spec(
    path: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    *,
    numbers: Sequence[int] = (1, 2, 3, 4, 6, 8),
    tokens: int = 128,
    repetitions: int = 3,
    prompts: Mapping[str, str] = PROMPTS,
    on_rows: Callable[[list[dict[str, Any]]], object] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Measure each draft length with each prompt; return a row for each pair.

    ``"n"`` of a row is the draft length, 0 for plain decoding, or ``"auto"`` for lengths that the
    controller chooses.  ``"speedup"`` is for decode, ``"total_speedup"`` for prefill and decode.

    Args:
        draft: The draft, as for `Llama`; it may propose fewer tokens than the draft length.
        numbers: The draft lengths; the controller chooses from 0 to the largest.
        tokens: The number of tokens to generate, unless the model ends the completion earlier.
        repetitions: Measured runs of each draft length.
        on_rows: A function that is called with the rows of each prompt as soon as they are
            measured.
        options: The options of `Llama`.

    Raises:
        SettingError: There is nothing to measure.
    """
    if repetitions < 1 or tokens < 2 or not numbers or min(numbers) < 1 or not prompts:
        raise SettingError(
            "there is nothing to measure",
            remedy="ask for one repetition, two tokens and one draft length, or more",
        )
    choices = (PLAIN, *dict.fromkeys(numbers), AUTO)
    with Llama(path, n_ctx=ROOM + tokens, draft=draft, draft_max=max(numbers), **options) as llm:
        rows = []
        for name, prompt in prompts.items():
            measured = _sweep(llm, name, prompt, choices, tokens, repetitions)
            rows += measured
            if on_rows:
                on_rows(measured)
        return rows


def _sweep(
    llm: Llama, name: str, prompt: str, choices: Sequence[int], tokens: int, repetitions: int
) -> list[dict[str, Any]]:
    runs: dict[int, list[_Run]] = {choice: [] for choice in choices}
    for choice in choices[:2]:
        _run(llm, prompt, choice, max(choices), min(tokens, 8))  # warm up
    for turn in range(repetitions):
        first = turn % len(choices)
        for choice in (*choices[first:], *choices[:first]):
            runs[choice].append(_run(llm, prompt, choice, max(choices), tokens))
    return [_row(llm, name, choice, runs[choice], runs[PLAIN]) for choice in choices]


def _run(llm: Llama, prompt: str, choice: int, maximum: int, tokens: int) -> _Run:
    own = llm.speculator
    assert own is not None, "a model without a draft"
    fixed = choice > 0
    speculator = Speculator(own.drafter, choice if fixed else maximum, fixed=fixed)
    llm.reset()
    own.drafter.forget()
    llm.speculator = None if choice == PLAIN else speculator
    try:
        text = _answer(llm, prompt, tokens)
    finally:
        llm.speculator = own  # restored, because closing the model releases it
    timing = llm.timing
    said = speculator.controller.speculation
    seconds = timing.prefill_seconds + timing.decode_seconds
    return _Run(text, timing.generated_tokens, timing.decode_rate, seconds, said)


def _answer(llm: Llama, prompt: str, tokens: int) -> str:
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0}
    if "tokenizer.chat_template" not in llm.metadata:
        return str(llm.generate(prompt, **options))
    return str(llm.chat([{"role": "user", "content": prompt}], **options))


def _row(
    llm: Llama, name: str, choice: int, runs: Sequence[_Run], plain: Sequence[_Run]
) -> dict[str, Any]:
    """Return the row of one draft length; its counts are those of the last run."""
    last, said = runs[-1], runs[-1].said
    ratios = [run.rate / base.rate for run, base in zip(runs, plain, strict=True) if base.rate]
    totals = [base.seconds / run.seconds for run, base in zip(runs, plain, strict=True)]
    assert llm.speculator is not None, "a model without a draft"
    return {
        "model": llm.path.name,
        "draft": llm.speculator.drafter.name,
        "device": llm.device.caps.name,
        "threads": llm.threads,
        "prompt": name,
        "n": "auto" if choice == AUTO else choice,
        "tokens": last.tokens,
        "drafted": said.drafted,
        "accepted": said.accepted,
        "accept_rate": said.accepted / said.drafted if said.drafted else None,
        "accepted_length": said.mean_accepted or 1.0,
        "tokens_per_second": statistics.median(run.rate for run in runs),
        "speedup": statistics.median(ratios)
        if ratios
        else None,  # None if a run has only one token
        "total_speedup": statistics.median(totals),
        "same_text": all(run.text == plain[0].text for run in runs),
        "samples": [run.rate for run in runs],
    }
