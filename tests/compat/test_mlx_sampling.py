"""Samplers and processors of npurt.compat.mlx_lm."""

import numpy as np
import pytest

from npurt.compat.mlx_lm import generate
from npurt.compat.mlx_lm import sample_utils as sampling
from npurt.compat.mlx_lm.models.cache import make_prompt_cache
from npurt.compat.mlx_lm.sample_utils import make_logits_processors, make_sampler
from npurt.errors import (
    LayoutError,
    SettingError,
)
from tests.compat.test_mlx_lm import PROMPT, only

CHANCES = np.array([[0.4, 0.3, 0.2, 0.1]])


def drawn(**options):
    sampler = make_sampler(1.0, seed=0, **options)
    return {int(sampler(np.log(CHANCES))[0]) for _ in range(300)}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.65}, {0, 1}),
        ({"top_p": 0.75}, {0, 1, 2}),
        ({"min_p": 0.6}, {0, 1}),
        ({"min_p": 0.9, "min_tokens_to_keep": 3}, {0, 1, 2}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.15}, {2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.15, "xtc_special_tokens": [0]}, {0, 2, 3}),
    ],
    ids=str,
)
def test_samplers_draw_from_what_is_kept(options, kept):
    assert drawn(**options) == kept


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_best_is_always_kept(dtype):
    logprobs = np.log(CHANCES).astype(dtype)
    for top_p in (1e-8, 1e-4, 0.1):
        assert np.isfinite(sampling.apply_top_p(logprobs, top_p)).tolist() == [
            [True, False, False, False]
        ]
    likely = sampling.apply_xtc(logprobs, 1.0, 0.15, [])
    assert np.isfinite(likely).tolist() == [[False, False, True, True]]
    assert np.array_equal(sampling.apply_xtc(logprobs, 0.0, 0.15, []), logprobs)


def test_samples_have_the_probabilities():
    sampler = make_sampler(2.0, seed=1)
    draws = sampler(np.repeat(np.log(CHANCES), 20000, axis=0))

    wanted = np.sqrt(CHANCES[0]) / np.sqrt(CHANCES[0]).sum()
    share = np.bincount(draws, minlength=4) / len(draws)
    assert np.abs(share - wanted).max() < 5 * np.sqrt(0.25 / len(draws))  # 5 sigma
    assert make_sampler()(np.log(CHANCES)).tolist() == [0]


@pytest.mark.parametrize(
    "options",
    [{"temp": -1}, {"temp": 1, "min_p": 2}, {"min_tokens_to_keep": 0}, {"xtc_threshold": 0.6}],
    ids=str,
)
def test_samplers_refuse_nonsense(options):
    with pytest.raises(SettingError, match=list(options)[-1]):
        make_sampler(**options)


def test_top_k_is_below_the_number_of_tokens():
    with pytest.raises(SettingError, match="top_k"):
        make_sampler(1.0, top_k=4)(np.log(CHANCES))


def test_processors_have_their_formulas():
    tokens, logits = np.array([3, 0, 1, 1]), np.array([[2.0, -2.0, 1.0, 4.0]], np.float32)

    def changed(**options):
        row = logits.copy()
        for processor in make_logits_processors(**options):
            row = processor(tokens, row)
        return row[0].tolist()

    assert changed() == changed(repetition_penalty=0, presence_penalty=None) == logits[0].tolist()
    assert changed(logit_bias={2: 5.0, 0: -1.0}) == [1, -2, 6, 4]
    assert changed(repetition_penalty=2.0) == [1, -4, 1, 2]
    assert changed(repetition_penalty=2.0, repetition_context_size=3) == [1, -4, 1, 4]
    assert changed(presence_penalty=0.5) == [1.5, -2.5, 1, 3.5]
    assert changed(frequency_penalty=0.5) == [1.5, -3, 1, 3.5]
    assert changed(frequency_penalty=0.5, frequency_context_size=1) == [2, -2.5, 1, 4]
    with pytest.raises(SettingError, match="penalty"):
        make_logits_processors(repetition_penalty=-1.0)
    with pytest.raises(LayoutError, match="logit_bias"):
        changed(logit_bias={4: 1.0})


def test_processors_see_the_tokens_of_the_prompt_and_the_text(pair, own):
    seen = []

    def watch(tokens, logits):
        seen.append((tokens.tolist(), logits.shape))
        return logits

    cache = make_prompt_cache(pair[0])
    generate(*pair, [1, 7], max_tokens=3, sampler=only(5), logits_processors=[watch])
    shape = (1, own.config.n_vocab)
    assert seen == [([1, 7], shape), ([1, 7, 5], shape), ([1, 7, 5, 5], shape)]
    seen.clear()
    generate(*pair, [1, 7], max_tokens=1, sampler=only(5), prompt_cache=cache)
    generate(*pair, [9], max_tokens=1, prompt_cache=cache, logits_processors=[watch])
    assert seen == [([9], shape)]


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": lambda logprobs: np.array([99999])},
        {"sampler": lambda logprobs: logprobs},
        {"logits_processors": [lambda tokens, logits: logits[0]]},
    ],
)
def test_functions_that_return_something_else_are_refused(pair, options):
    with pytest.raises(LayoutError, match="returned"):
        generate(*pair, PROMPT, **options)


def test_a_tiny_temperature_takes_the_best_token():
    logprobs = np.log(np.array([[0.2, 0.5, 0.3]]))
    for temp in (1e-320, 1e-30):
        assert make_sampler(temp, seed=1)(logprobs).tolist() == [1]


def test_seeds_and_special_tokens_are_checked():
    for seed in (-1, 1.5, "x"):
        with pytest.raises(SettingError, match="seed"):
            make_sampler(0.5, seed=seed)
    logprobs = np.log(np.array([[0.2, 0.5, 0.3]]))
    with pytest.raises(LayoutError, match="xtc_special_tokens has 3"):
        sampling.apply_xtc(logprobs, 1.0, 0.1, [3])
    with pytest.raises(SettingError, match="xtc_special_tokens"):
        sampling.apply_xtc(logprobs, 1.0, 0.1, [0.5])
    assert np.isneginf(sampling.apply_xtc(logprobs, 1.0, 0.1, [2])).tolist() == [[0, 1, 0]]
