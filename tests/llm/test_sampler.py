"""Tests of the sampler: possible tokens, their frequencies, and refused settings."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npurt.errors import LayoutError, NumericsError, SettingError
from npurt.llm.decode.sampler import Sampling, TokenSampler, distribution, greedy
from npurt.llm.decode.samplers.top_k import BLOCK, FEW, best, best_by_numpy
from tests.limits import HANG_SECONDS

LLAMA_CPP = json.loads(
    (Path(__file__).parents[1] / "data/sampler/llama_cpp_chain.json").read_text()
)
logits_of = st.lists(st.integers(-4000, 4000), min_size=1, max_size=40).map(
    lambda values: np.array(values, np.float32) / np.float32(256)
)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, 50),
    top_p=st.sampled_from([0.0, 0.2, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([0.7, 1.0, 1.3]),
    repeat_last_n=st.integers(-1, 5),
    seed=st.just(0),
)


def by_hand(logits, history, s):
    """Compute the chain one token at a time, in the order of llama.cpp's manual."""
    recent = history if s.repeat_last_n == -1 else history[max(0, len(history) - s.repeat_last_n) :]
    penalty = np.float32(s.repeat_penalty)
    logits = dict(enumerate(logits))
    for i in set(recent):
        logits[i] = logits[i] / penalty if logits[i] > 0 else logits[i] * penalty
    logits = {i: float(value) for i, value in logits.items()}
    ranked = sorted(logits, key=lambda i: (-logits[i], i))
    if s.temperature == 0:
        return {ranked[0]: 1.0}
    ranked = ranked[: s.top_k or None]
    weights = [math.exp(logits[i] - logits[ranked[0]]) for i in ranked]
    kept, covered = [], 0.0
    for i, weight in zip(ranked, weights, strict=True):
        kept.append(i)
        covered += weight / sum(weights)
        if covered >= s.top_p and s.top_p < 1:
            break
    if s.min_p > 0:
        floor = logits[ranked[0]] + math.log(s.min_p)
        kept = [i for i in kept if logits[i] >= floor]
    weights = [math.exp((logits[i] - logits[ranked[0]]) / s.temperature) for i in kept]
    return {i: weight / sum(weights) for i, weight in zip(kept, weights, strict=True)}


# --- Candidates and their frequencies -------------------------------------------------------------


@pytest.mark.parametrize(("penalty", "chosen"), [(5e-324, 0), (1e-30, 0), (1e30, 0), (1e308, 2)])
def test_a_penalty_leaves_finite_logits_finite(penalty, chosen):
    """If a penalty or a result exceeds float32's range, the logit is the largest finite number."""
    logits = np.array([3e38, 0.0, 1.0, -3e38, -np.inf], np.float32)
    sampler = TokenSampler(Sampling(temperature=0, repeat_penalty=penalty))

    assert sampler.sample(logits, [0, 1, 3, 4]) == chosen


@pytest.mark.parametrize("case", LLAMA_CPP)
def test_candidates_and_probabilities_are_llama_cpps(case):
    sampling = Sampling(**case["sampling"])
    ids, probabilities = distribution(
        np.array(case["logits"], np.float32), case["history"], sampling
    )

    assert ids.tolist() == case["ids"]
    # llama.cpp divides by the temperature in float32.  2^-24 of a quotient is the relative error of
    # its exponential, once in the numerator and once in the sum.  The file has 7 digits.
    largest = max(map(abs, case["logits"])) * max(sampling.repeat_penalty, 1.25)
    error = 2 * 2.0**-24 * (2 * largest / max(sampling.temperature, 0.2) + 2) + 5e-7
    np.testing.assert_allclose(probabilities, case["probabilities"], rtol=error)


@given(logits_of, samplings, st.lists(st.integers(0, 39), max_size=8))
def test_the_distribution_is_that_of_the_chain_done_by_hand(logits, sampling, history):
    history = [i for i in history if i < len(logits)]
    ids, probabilities = distribution(logits, history, sampling)
    expected = by_hand(logits, history, sampling)

    assert ids.tolist() == list(expected)
    np.testing.assert_allclose(probabilities, list(expected.values()), rtol=1e-12)


@pytest.mark.parametrize("function", [best, best_by_numpy])
@given(
    hnp.arrays(np.float32, st.integers(1, 6 * BLOCK), elements=st.sampled_from(
        [-np.inf, -3e38, -2.5, -2.0, -0.0, 0.0, 1e-45, 1.0, 1.5, 3e38]
    )) | hnp.arrays(np.float32, st.integers(1, 6 * BLOCK), elements=st.integers(-99, 99)),
    st.integers(1, 12) | st.integers(13, 7 * BLOCK),
    st.integers(0, 8),
)  # fmt: skip
def test_top_k_is_the_start_of_the_whole_order_whatever_the_ties(function, logits, k, n_ruled_out):
    logits[:n_ruled_out] = -np.inf
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))

    assert function(logits, k).tolist() == [i for i in order[:k] if logits[i] > -np.inf]


@pytest.mark.parametrize("k", [1, 40, FEW + 1])
def test_top_k_of_a_large_vocabulary_does_not_depend_on_what_was_compiled(k):
    logits = np.random.default_rng(0).integers(-9999, 9999, 151_936).astype(np.float32) / 64

    assert best(logits, k).tolist() == best_by_numpy(logits, k).tolist()
    assert best(logits[::-1], k).tolist() == best_by_numpy(logits[::-1].copy(), k).tolist()


def test_sampling_needs_nothing_that_is_compiled(tmp_path):
    """A process without the compiled library draws the same tokens as a process with it."""
    code = """if True:
        import numpy as np
        from npurt.llm.decode.sampler import TokenSampler, Sampling
        rows = np.random.default_rng(0).standard_normal((20, 999), np.float32)
        sampler = TokenSampler(Sampling(seed=1))
        print([sampler.sample(row, [i]) for i, row in enumerate(rows)])
        print(__import__("npurt.llm.decode.samplers.in_c", fromlist=["x"]).compiled())
    """
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True,
            check=True, timeout=HANG_SECONDS,
        ).stdout.splitlines()
        for more in ({}, {"NPURT_LIBRARIES": str(tmp_path)})
    ]  # fmt: skip
    assert found[0][0] == found[1][0]
    assert [lines[1] for lines in found] == ["True", "False"]


def test_minus_one_of_top_k_keeps_all():
    assert Sampling(top_k=-1) == Sampling(top_k=0)


def test_draws_come_as_often_as_their_probability_says():
    logits = np.array([1.0, 0.0, -1.0, 0.5, -2.0], np.float32)
    sampling = Sampling(temperature=0.7, top_k=0, top_p=1, min_p=0, seed=11)
    sampler = TokenSampler(sampling)
    n = 20_000

    counts = np.bincount([sampler.sample(logits, range(i)) for i in range(n)], minlength=5)

    expected = by_hand(logits, [], sampling)
    for i, probability in expected.items():
        sigma = math.sqrt(n * probability * (1 - probability))
        assert abs(counts[i] - n * probability) < 5 * sigma  # 1 in 10^6 by chance


@given(logits_of)
def test_temperature_0_takes_the_best_and_the_first_of_equals(logits):
    assert TokenSampler(Sampling(temperature=0)).sample(logits) == logits.tolist().index(
        max(logits)
    )


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others():
    logits = np.zeros(1000, np.float32)

    def tokens(seed):
        sampler = TokenSampler(Sampling(top_k=0, seed=seed))
        return [sampler.sample(logits, range(i)) for i in range(20)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(None) != tokens(None)  # 1000^-20 by chance


@given(logits_of, samplings, st.sets(st.integers(0, 39)))
def test_what_must_never_be_sampled_never_is(logits, sampling, never):
    never = {i for i in never if i < len(logits)}
    before = logits.copy()
    sampler = TokenSampler(sampling, never)
    if len(never) == len(logits):
        with pytest.raises(NumericsError):
            sampler.sample(logits)
        return

    assert sampler.sample(logits) not in never
    assert not never & set(sampler.distribution(logits)[0].tolist())
    np.testing.assert_array_equal(logits, before)


def test_a_repeated_token_loses_whatever_its_sign():
    logits = np.array([2.0, 1.9, -1.0, -1.05], np.float32)
    sampler = TokenSampler(Sampling(temperature=0, repeat_penalty=1.2))

    assert sampler.sample(logits, []) == 0
    assert sampler.sample(logits, [0]) == 1
    assert sampler.sample(logits[2:], [0]) == 1


@pytest.mark.parametrize(("last_n", "chosen"), [(0, 0), (1, 0), (2, 1), (3, 1), (-1, 1)])
def test_only_the_last_n_tokens_are_penalised(last_n, chosen):
    logits = np.array([2.0, 1.9, 0.0], np.float32)
    sampling = Sampling(temperature=0, repeat_penalty=1.2, repeat_last_n=last_n)

    assert TokenSampler(sampling).sample(logits, [0, 2]) == chosen


def test_a_temperature_next_to_0_is_greedy():
    logits = np.array([1.0, 3.0, 2.0], np.float32)
    assert distribution(logits, [], Sampling(temperature=1e-300))[1].tolist()[0] == 1


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -2},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"repeat_penalty": math.inf},
        {"repeat_last_n": -2},
        {"seed": -1},
        {"seed": 1 << 128},
        {"typical_p": 1.1},
        {"top_n_sigma": math.nan},
        {"top_n_sigma": math.inf},
        {"xtc_probability": -0.1},
        {"xtc_threshold": 2},
        {"dry_multiplier": -1},
        {"dry_base": 0.9},
        {"dry_base": math.inf},
        {"dry_allowed_length": -1},
        {"dry_penalty_last_n": -2},
        {"dry_sequence_breakers": "\n"},
        {"dry_sequence_breakers": [""]},
        {"dry_sequence_breakers": [5]},
        {"frequency_penalty": math.inf},
        {"presence_penalty": math.nan},
        {"presence_penalty": "1"},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"a": 1.0}},
        {"logit_bias": [1.0]},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused_by_name(options):
    (name,) = options
    with pytest.raises(SettingError, match=name):
        Sampling(**options)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(), Sampling(top_k=0)])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_logit_that_is_no_number_is_refused(sampling, value, at):
    logits = np.linspace(-1, 1, 1000, dtype=np.float32)
    logits[at] = value
    with pytest.raises(NumericsError, match=f"token {at}"):
        TokenSampler(sampling).sample(logits)


def test_no_token_left_is_refused():
    with pytest.raises(NumericsError):
        TokenSampler(Sampling()).sample(np.full(8, -np.inf, np.float32))


@pytest.mark.parametrize(
    "logits", [np.zeros((1, 4), np.float32), np.zeros(4), np.zeros(0, np.float32)], ids=str
)
def test_logits_that_are_not_one_row_of_float32_are_refused(logits):
    with pytest.raises(LayoutError, match="float32"):
        greedy(logits)
    with pytest.raises(LayoutError, match="float32"):
        TokenSampler(Sampling()).sample(logits)


@pytest.mark.parametrize("temperature", [0, 1])
def test_ids_to_leave_out_that_are_not_in_the_vocabulary_are_refused(temperature):
    sampler = TokenSampler(Sampling(temperature=temperature), never=[0, 4])
    with pytest.raises(LayoutError, match="4"):
        sampler.sample(np.zeros(4, np.float32))


@pytest.mark.parametrize("history", [[4], [-1], [0, 9]])
def test_a_history_of_another_vocabulary_is_refused(history):
    with pytest.raises(LayoutError, match="history"):
        TokenSampler(Sampling(repeat_penalty=1.1)).sample(np.zeros(4, np.float32), history)
