"""Tests of tokens drawn in C: they equal numpy's, and numpy draws if C cannot be certain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npurt.cpu.kernels import abi
from npurt.errors import LayoutError, NumericsError
from npurt.llm.decode.sampler import Sampling, TokenSampler
from npurt.llm.decode.samplers.draw import Draws
from npurt.llm.decode.samplers.drawn_in_c import drawn_in_c

USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
NONE = np.zeros(0, np.int64)
settings = st.fixed_dictionaries({
    "temperature": st.sampled_from([1e-3, 0.3, 0.8, 1.0, 2.0]),
    "top_k": st.sampled_from([0, 1, 3, 40, 300]),
    "top_p": st.sampled_from([0.0, 0.2, 0.5, 0.75, 0.95, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "seed": st.integers(0, 1000),
})  # fmt: skip
tied = hnp.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from(
    [-np.inf, -3e38, -1.0, -0.0, 0.0, 0.5, 1.0, 90.0, 3e38]
))  # fmt: skip
varied = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-9, 9, width=32))


def drawn_by_numpy(sampling, logits, position, never=()):
    """Return a token that numpy draws from the distribution of the samplers."""
    ids, probabilities = TokenSampler(sampling, never).distribution(logits, [0] * position)
    bounds = np.cumsum(probabilities)
    random, _ = Draws(sampling.seed)(position)
    at = np.searchsorted(bounds, random * bounds[-1], side="right")
    return ids[min(at, len(ids) - 1)]


def like_a_model(rng, vocabulary):
    """Return random logits, some of which are much larger than the others."""
    logits = rng.standard_normal(vocabulary, np.float32)
    logits[rng.integers(0, vocabulary, 100)] += rng.exponential(4, 100).astype(np.float32) + 8
    return logits


@given(tied | varied, settings, st.integers(0, 9), st.sets(st.integers(0, 299), max_size=9))
def test_the_tokens_are_those_of_numpy(logits, given_settings, position, never):
    sampling = Sampling(**given_settings)
    logits[0] = 0.0
    never = {token for token in never if 0 < token < len(logits)}

    expected = drawn_by_numpy(sampling, logits, position, never)

    assert TokenSampler(sampling, never).sample(logits, [0] * position) == expected


@pytest.mark.parametrize("isa", abi.isas())
@pytest.mark.parametrize(
    "more", [{}, {"top_k": 0}, {"top_k": 0, "min_p": 0.0}, {"top_k": 0, "top_p": 1.0}]
)
@pytest.mark.parametrize("never", [[], [0, 1, 7, 8, 9, *range(29_900, 30_001)]])
def test_a_model_needs_no_numpy(monkeypatch, isa, more, never):
    monkeypatch.setenv("NPURT_CPU_ISA", isa)
    rng = np.random.default_rng(1)
    sampling = Sampling(**USUAL | more, seed=5)
    draw = drawn_in_c(sampling, np.array(never, np.int64))
    for position in range(30):
        logits = like_a_model(rng, 30_001)
        logits[never[-3:]] = 99.0

        token = draw(logits, Draws(5)(position)[0])

        assert token == drawn_by_numpy(sampling, logits, position, never)


@pytest.mark.parametrize("isa", abi.isas())
@pytest.mark.parametrize("vocabulary", [2, 15, 16, 17, 18, 256, 257, 272, 273, 999])
def test_without_top_k_the_last_logit_counts(monkeypatch, isa, vocabulary):
    """The first token has probability 0.73, and 0.78 at temperature 0.8; the last has the rest."""
    monkeypatch.setenv("NPURT_CPU_ISA", isa)
    logits = np.full(vocabulary, -90, np.float32)
    logits[[0, -1]] = 1, 0
    more = {"top_k": 0, "min_p": 0.0}

    assert (
        drawn_in_c(Sampling(**USUAL | more | {"top_p": 0.8}), NONE)(logits, 0.9) == vocabulary - 1
    )
    assert drawn_in_c(Sampling(**USUAL | more | {"top_p": 0.7}), NONE)(logits, 0.9) == 0


def test_min_p_of_1_keeps_equals_of_the_largest():
    draw = drawn_in_c(Sampling(**USUAL | {"min_p": 1.0}), NONE)

    assert [draw(np.array([0, 3, 3], np.float32), random) for random in (0.4, 0.6)] == [1, 2]


@pytest.mark.parametrize(
    ("logits", "more", "random"),
    [
        ([0.0, np.nan, 1.0], {}, 0.1),
        ([0.0, np.inf, 1.0], {}, 0.1),
        ([-np.inf, -np.inf], {}, 0.1),
        ([1.0, 1.0, 1.0, 1.0], {"top_p": 0.5}, 0.1),  # token 1 or 2 reaches top_p
        ([1.0, 1.0], {}, 0.5),  # 0.5 is the limit between both
        ([0.0] * 9999, {"top_k": 0}, 0.1),  # too many candidates
    ],
)
def test_what_c_is_not_sure_of_is_left_to_numpy(logits, more, random):
    draw = drawn_in_c(Sampling(**USUAL | more), NONE)

    assert draw(np.array(logits, np.float32), random) is None


def test_errors_are_those_of_numpy():
    sampler = TokenSampler(Sampling(**USUAL), [3])

    with pytest.raises(NumericsError, match="nan"):
        sampler.sample(np.array([0, np.nan, 0, 0], np.float32))
    with pytest.raises(LayoutError, match="there are 3 logits"):
        sampler.sample(np.zeros(3, np.float32))
    with pytest.raises(LayoutError, match="float64"):
        sampler.sample(np.zeros(4))


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.0}, {"typical_p": 0.9}, {"top_n_sigma": 1.0}, {"xtc_probability": 0.5},
        {"top_k": 5000}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    ],
)  # fmt: skip
def test_other_filters_are_numpys(more):
    assert drawn_in_c(Sampling(**USUAL | more), NONE) is None


def test_no_end_is_drawn_before_its_time():
    """End tokens are excluded before position 2 only."""
    logits = np.array([9.0, 0.0, 0.0], np.float32)
    sampler = TokenSampler(Sampling(**USUAL, seed=1), ends=[0], begins=2)

    assert sampler.sample(logits, [1]) != 0
    assert sampler.sample(logits, [1, 1]) == 0
