"""Tests of samplers, against values of llama.cpp, definitions in plain Python, and known limits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.llm.decode.sampler import NO_TOKEN, Sampling, TokenSampler, distribution
from npurt.llm.decode.samplers.candidates import Candidates, Text
from npurt.llm.decode.samplers.draw import Draws
from npurt.llm.decode.samplers.dry import dry, reach_of, repeated
from npurt.llm.decode.samplers.penalties import penalties
from npurt.llm.decode.samplers.top_k import top_k
from npurt.llm.decode.samplers.typical_p import typical_p

ALL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # every filter is off
NO_BREAKERS = {"dry_sequence_breakers": (), "dry_base": 1.1}
logits_of = st.lists(st.integers(-2000, 2000), min_size=1, max_size=30).map(
    lambda values: np.array(values, np.float32) / np.float32(256)
)


def shares(logits, history=(), breakers=None, seed=0, **settings):
    """Return the probability of each token, with only the filters of *settings*."""
    sampler = TokenSampler(Sampling(**ALL | {"seed": seed} | settings), breakers=breakers)
    ids, probabilities = sampler.distribution(logits, history)
    whole = np.zeros(len(logits))
    whole[ids] = probabilities
    return whole


# --- What llama.cpp's own tests expect ------------------------------------------------------------
# Source of the numbers: llama.cpp tests/test-sampling.cpp, MIT.  That test compares probabilities
# to 1e-5; its logits are the logarithms of the first list.

ONE_TO_FOUR = [0.1, 0.2, 0.3, 0.4]
FOUR_TO_ONE = [0.4, 0.3, 0.2, 0.1]
FIVE = [0.2] * 5
QUARTERS = [0.25] * 4


@pytest.mark.parametrize(
    ("given", "history", "settings", "expected"),
    [
        (ONE_TO_FOUR, [], {"top_k": 3}, [0, 0.22222, 0.33333, 0.44444]),
        (ONE_TO_FOUR, [], {"top_p": 0.7}, [0, 0, 0.428571, 0.571429]),
        (ONE_TO_FOUR, [], {"top_p": 0.0}, [0, 0, 0, 1]),
        (ONE_TO_FOUR, [], {"min_p": 0.26}, [0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9]),
        (ONE_TO_FOUR, [], {"min_p": 0.74}, [0, 0, 0.3 / 0.7, 0.4 / 0.7]),
        (ONE_TO_FOUR, [], {"min_p": 1.0}, [0, 0, 0, 1]),
        (ONE_TO_FOUR, [], {"temperature": 0.0}, [0, 0, 0, 1]),
        (FOUR_TO_ONE, [], {"xtc_probability": 1.0, "xtc_threshold": 0.09}, [0, 0, 0, 1]),
        (FOUR_TO_ONE, [], {"xtc_probability": 1.0, "xtc_threshold": 0.19}, [0, 0, 2 / 3, 1 / 3]),
        (FOUR_TO_ONE, [], {"xtc_probability": 1.0, "xtc_threshold": 0.29}, [0, 0.5, 1 / 3, 1 / 6]),
        (FOUR_TO_ONE, [], {"xtc_probability": 1.0, "xtc_threshold": 0.39}, FOUR_TO_ONE),
        ([0.97, 0.01, 0.01, 0.01], [], {"typical_p": 0.5}, [1, 0, 0, 0]),
        ([0.4, 0.2, 0.2, 0.2], [], {"typical_p": 0.5}, [0, 1 / 3, 1 / 3, 1 / 3]),
        (ONE_TO_FOUR, [], {"top_n_sigma": 1.0}, [0, 0, 0.428571, 0.571429]),
        (ONE_TO_FOUR, [], {"top_n_sigma": 0.0}, ONE_TO_FOUR),
        (ONE_TO_FOUR, [], {"top_n_sigma": 3.0}, ONE_TO_FOUR),
        (FIVE, [0], {"repeat_penalty": 50.0}, [0, 0.25, 0.25, 0.25, 0.25]),
        (FIVE, [0, 1, 2, 0, 0], {"repeat_penalty": 50.0}, [0, 0, 0, 0.5, 0.5]),
        (FIVE, [0], {"frequency_penalty": 5.0, "presence_penalty": 5.0},
         [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
        (FIVE, [0, 1, 2], {"frequency_penalty": 5.0, "presence_penalty": 5.0},
         [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
        (FIVE, [0, 1, 2, 0, 0], {"frequency_penalty": 5.0, "presence_penalty": 5.0},
         [0, 0.000023, 0.000023, 0.499977, 0.499977]),
        (QUARTERS, [0, 1], {"dry_multiplier": 1.0} | NO_BREAKERS, QUARTERS),
        (QUARTERS, [0, 1, 2, 0, 1], {"dry_multiplier": 1.0} | NO_BREAKERS,
         [0.296923, 0.296923, 0.109232, 0.296923]),
        (FIVE, [0, 1, 2, 0, 1], {"dry_multiplier": 2.0} | NO_BREAKERS,
         [0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
        (FIVE, [0, 1, 2, 3, 4, 0, 1],
         {"dry_multiplier": 1.0, "dry_allowed_length": 4} | NO_BREAKERS, FIVE),
    ],
    ids=str,
)  # fmt: skip
def test_probabilities_are_those_of_llama_cpps_tests(given, history, settings, expected):
    found = shares(np.log(np.array(given, np.float32)), history, **settings)

    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_sequence_breaker_is_not_penalised_as_in_llama_cpps_test():
    logits = np.log(np.array(FIVE, np.float32))
    settings = {"dry_multiplier": 1.0, "dry_base": 1.1}

    np.testing.assert_allclose(shares(logits, [0, 1, 3, 4, 0, 1], {3: ((),)}, **settings), FIVE)
    assert shares(logits, [0, 1, 3, 4, 0, 1], **settings)[3] < 0.1


def test_the_three_penalties_are_those_of_llama_cpps_test():
    """Token 1 has logit -2 or 4 and occurs twice, and token 7 has logit 1 and occurs once."""
    logits = np.zeros(8, np.float32)
    logits[[4, 1, 7]] = [2.0, -2.0, 1.0]
    text = Text([1, 1, 7])
    options = {"repeat": 2.0, "frequency": 0.25, "presence": 0.5, "last": 5}

    changed = penalties(Candidates(logits), text, **options).logits
    assert changed[[4, 1, 7]].tolist() == [2.0, -5.0, -0.25]
    logits[1] = 4.0
    assert penalties(Candidates(logits), text, **options).logits[1] == 1.0


# --- Random numbers -------------------------------------------------------------------------------

# Source: Random123, tests/kat_vectors, lines "philox4x64 10", as quoted in the tests of E. Sarmas's
# philox.py (2018, Apache-2.0).  A line has counter, key and result, lowest words first.
PI = [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
VECTORS = [
    ([0] * 4, [0] * 2,
     [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]),
    ([2**64 - 1] * 4, [2**64 - 1] * 2,
     [0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0]),
    (PI, [0x452821E638D01377, 0xBE5466CF34E90C6C],
     [0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6]),
]  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_random_words_are_the_published_ones_of_philox(counter, key, expected):
    position, seed = (sum(w << 64 * i for i, w in enumerate(words)) for words in (counter, key))

    assert Draws(seed).words(position).tolist() == expected


def test_the_numbers_of_position_0_are_the_first_words_in_53_bits():
    assert Draws(0)(0) == tuple(word // 2**11 / 2**53 for word in VECTORS[0][2][:2])
    assert 0 <= min(Draws(2**128 - 1)(2**256 - 1)) < 1


@given(st.integers(0, 2**128 - 1), st.lists(st.integers(0, 50), max_size=30))
def test_a_random_number_depends_on_seed_and_position_alone(seed, positions):
    draws = Draws(seed)
    for position in positions:
        assert draws(position) == Draws(seed)(position)


def test_a_text_that_is_resumed_draws_the_same():
    logits = np.zeros(50, np.float32)
    whole = [TokenSampler(Sampling(**ALL, seed=3)).sample(logits, [0] * i) for i in range(20)]
    sampler = TokenSampler(Sampling(**ALL, seed=3))

    assert [sampler.sample(logits, [0] * i) for i in range(12, 20)] == whole[12:]
    assert [sampler.sample(logits, [0] * i) for i in range(20)] == whole
    assert len(set(whole)) > 5


# --- Definitions in plain Python ------------------------------------------------------------------


def typical_by_hand(weights, p):
    """Return ids in order of | -log p - H | until their probabilities sum to more than *p*."""
    chances = [weight / math.fsum(weights) for weight in weights]
    entropy = -math.fsum(c * math.log(c) for c in chances)
    order = sorted(range(len(chances)), key=lambda i: abs(-math.log(chances[i]) - entropy))
    kept, covered = [], 0.0
    for i in order:
        kept.append(i)
        covered += chances[i]
        if covered > p:
            break
    return kept, covered


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12, unique=True), st.floats(0, 0.999))
def test_typical_tokens_are_those_of_the_definition(weights, p):
    logits = np.log(np.array(weights, np.float64)).astype(np.float32)
    sorted_first = top_k(Candidates(logits), Text(), k=0)
    found = typical_p(sorted_first, Text(), p=p).best_first().tolist()
    exact = np.exp(logits.astype(np.float64)).tolist()
    kept, covered = typical_by_hand(exact, p)
    chances = np.array(exact) / math.fsum(exact)
    gaps = np.abs(-np.log(chances) + (chances * np.log(chances)).sum())

    if len(set(np.round(gaps, 9))) == len(gaps) and abs(covered - p) > 1e-9:  # no ties
        # If the sum before the last id is too close to p, rounding determines the result.
        before = covered - chances[kept[-1]]
        if abs(before - p) > 1e-9:
            assert set(found) == set(kept)
    assert found == sorted(found, key=lambda i: (-logits[i], i))


@given(logits_of, st.floats(0.01, 4))
def test_top_n_sigma_keeps_what_is_near_the_best(logits, n):
    values = [float(value) for value in logits]
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    found = shares(logits, top_n_sigma=n) > 0
    for value, kept in zip(values, found, strict=True):
        if abs(value - (max(values) - n * sigma)) > 1e-4:
            assert kept == (value > max(values) - n * sigma)


@given(logits_of, st.floats(0.01, 0.5), st.integers(0, 500))
def test_xtc_drops_all_but_the_worst_of_the_predictable(logits, threshold, seed):
    plain = shares(logits)
    found = shares(logits, seed=seed, xtc_probability=0.5, xtc_threshold=threshold)
    predictable = [i for i in np.argsort(-logits, kind="stable") if plain[i] >= threshold]
    dropped = predictable[:-1] if Draws(seed)(0)[1] < 0.5 else []

    if min(abs(plain - threshold)) > 1e-9:
        assert np.flatnonzero(found == 0).tolist() == sorted(dropped)


def test_xtc_is_applied_as_often_as_it_should():
    logits = np.log(np.array(FOUR_TO_ONE, np.float32))
    options = {"xtc_probability": 0.3, "xtc_threshold": 0.29}
    sampler = TokenSampler(Sampling(**ALL, **options, seed=1))
    n = 5000

    counts = np.bincount([sampler.sample(logits, range(i)) for i in range(n)], minlength=4)

    # The exact chance is 0.7 of the plain one and 0.3 of the one without the best token.
    for i, (plain, rest) in enumerate(zip(FOUR_TO_ONE, [0, 1 / 2, 1 / 3, 1 / 6], strict=True)):
        chance = 0.7 * plain + 0.3 * rest
        sigma = math.sqrt(n * chance * (1 - chance))
        assert abs(counts[i] - n * chance) < 5 * sigma  # 1 in 10^6 by chance


def dry_by_hand(history, allowed, breakers):
    """Return the longest repetition, of *allowed* tokens or more, that each token would extend."""
    reach = len(history)
    for at in reversed(range(len(history))):
        if history[at] in breakers:
            reach = len(history) - 1 - at
            break
    longest = {}
    for at, follower in enumerate(history[1:]):
        for length in range(1, min(at + 1, reach) + 1):
            if history[at + 1 - length : at + 1] != history[len(history) - length :]:
                break
            if length >= allowed and follower not in breakers:
                longest[follower] = max(length, longest.get(follower, 0))
    return longest


@given(
    st.lists(st.integers(0, 3), max_size=25),
    st.integers(1, 4),
    st.sets(st.integers(0, 3), max_size=1),
    st.integers(-1, 12),
)
def test_dry_penalises_what_prolongs_a_repetition_by_its_length(history, allowed, breakers, last):
    logits = np.zeros(4, np.float32)
    text = Text(history, breakers=dict.fromkeys(breakers, ((),)))
    options = {"multiplier": 0.5, "base": 1.75, "allowed": allowed, "last": last}
    found = dry(Candidates(logits), text, **options).logits
    seen = history if last < 0 else history[len(history) - min(last, len(history)) :]

    expected = np.zeros(4)
    for token, length in dry_by_hand(seen, allowed, breakers).items():
        expected[token] = -0.5 * 1.75 ** (length - allowed)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_lengths_of_llama_cpps_example():
    """The example "a b c c b c y a b c" is from llama.cpp src/llama-sampling.cpp, MIT, step 3."""
    tokens = np.array([0, 1, 2, 2, 1, 2, 3, 0, 1, 2])

    assert repeated(tokens, 1, 10).tolist() == [0, 0, 3, 1, 0, 2, 0, 0, 0]
    assert repeated(tokens, 2, 10).tolist() == [0, 0, 3, 0, 0, 2, 0, 0, 0]
    assert repeated(tokens, 1, 2).tolist() == [0, 0, 2, 1, 0, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("breakers", "reach"),
    [({}, 6), ({9: ((),)}, 6), ({2: ((),)}, 3), ({2: ((3,),)}, 2), ({2: ((4,),)}, 6),
     ({2: ((), (3, 4))}, 1), ({5: ((),)}, 0), ({1: ((),), 4: ((),)}, 1)],
)  # fmt: skip
def test_a_repetition_begins_after_the_last_sequence_breaker(breakers, reach):
    assert reach_of(np.array([0, 1, 2, 3, 4, 5]), breakers) == reach


def test_a_long_repetition_leaves_finite_logits():
    logits = np.zeros(4, np.float32)
    options = {"multiplier": 1.0, "base": 1.75, "allowed": 2, "last": -1}
    changed = dry(Candidates(logits), Text([1] * 3000), **options).logits

    assert np.isfinite(changed).all()
    assert changed[1] < -1e38
    assert changed[[0, 2, 3]].tolist() == [0, 0, 0]


def test_a_base_near_1_counts_each_token_of_a_repetition():
    logits = np.zeros(4, np.float32)
    options = {"multiplier": 1.0, "base": 1.0000005, "allowed": 2, "last": -1}
    changed = dry(Candidates(logits), Text([1] * 200_000), **options).logits

    assert changed[1] == pytest.approx(-(1.0000005 ** (200_000 - 1 - 2)), rel=1e-6)  # -1.105


def test_a_small_multiplier_counts_each_token_of_a_repetition():
    options = {"multiplier": 1e-300, "base": 2.0, "allowed": 2, "last": -1}
    changed = dry(Candidates(np.zeros(2, np.float32)), Text([1] * 1003), **options).logits

    assert changed[1] == pytest.approx(-(2.0**1000) * 1e-300, rel=1e-6)  # -10.7


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 4), st.integers(4, 40))
def test_lengths_of_repetitions_are_those_that_are_counted_one_by_one(tokens, minimum, maximum):
    wanted = []
    for end in range(1, len(tokens)):
        size = 0
        while size < min(end, maximum) and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        wanted.append(size if size >= minimum else 0)

    assert repeated(np.array(tokens), minimum, maximum).tolist() == wanted


@given(logits_of, st.dictionaries(st.integers(0, 29), st.integers(-50, 50), max_size=5))
def test_biases_are_added(logits, biases):
    biases = {i: bias for i, bias in biases.items() if i < len(logits)}
    added = logits.astype(np.float64)
    for i, bias in biases.items():
        added[i] += bias
    weights = np.exp(added - added.max())

    np.testing.assert_allclose(
        shares(logits, logit_bias=biases), weights / weights.sum(), rtol=1e-4, atol=1e-30
    )


def test_a_bias_excludes_a_token_and_others_are_refused():
    logits = np.array([3.0, 2.0, 1.0], np.float32)

    assert shares(logits, logit_bias={"0": -math.inf})[0] == 0
    assert TokenSampler(Sampling(temperature=0, logit_bias={2: 100})).sample(logits) == 2
    large = np.array([3.4e38, -3.4e38], np.float32)
    assert shares(large, logit_bias={0: 1e38, 1: -1e38}).tolist() == [1, 0]
    with pytest.raises(LayoutError, match="logit_bias"):
        shares(logits, logit_bias={3: 1.0})


@given(
    logits_of,
    st.fixed_dictionaries(
        {},
        optional={
            "top_k": st.integers(0, 8),
            "top_p": st.sampled_from([0.0, 0.5, 0.9]),
            "min_p": st.sampled_from([0.0, 0.2]),
            "typical_p": st.sampled_from([0.0, 0.4, 0.9]),
            "top_n_sigma": st.sampled_from([0.5, 1.5]),
            "xtc_probability": st.just(1.0),
            "dry_multiplier": st.just(0.8),
            "presence_penalty": st.just(1.5),
            "temperature": st.sampled_from([0.0, 0.5, 2.0]),
        },
    ),
    st.lists(st.integers(0, 29), max_size=10),
)
def test_whatever_the_settings_some_token_is_left_and_the_logits_are_unchanged(
    logits, settings, history
):
    history = [i for i in history if i < len(logits)]
    before = logits.copy()
    sampling = Sampling(**ALL | settings | {"seed": 1})
    ids, chances = distribution(logits, history, sampling)
    plain = set(distribution(logits, history, Sampling(**ALL))[0].tolist())

    assert math.isclose(chances.sum(), 1, rel_tol=1e-9)
    assert len(set(ids.tolist())) == len(ids) > 0
    assert set(ids.tolist()) <= plain
    np.testing.assert_array_equal(logits, before)
    assert TokenSampler(sampling).sample(logits, history) in ids


# --- Ends, functions of the caller ----------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_ends_are_not_sampled_before_their_time(temperature):
    logits = np.array([-90.0, 1.0, 90.0, 89.0], np.float32)
    sampler = TokenSampler(Sampling(temperature=temperature), never=[3], ends=[2], begins=5)

    assert [sampler.sample(logits, [0] * n) for n in (0, 4)] == [1, 1]
    assert [sampler.sample(logits, [0] * n) for n in (5, 6)] == [2, 2]


def test_functions_see_the_ids_and_logits_that_they_may_overwrite():
    logits = np.array([1.0, 2.0, 3.0], np.float32)
    calls = []

    def only_first(ids, scores):
        calls.append(ids.tolist())
        scores[1:] = -np.inf
        return scores

    def stop(ids, scores):
        scores[:] = 0
        return len(ids) == 2

    sampler = TokenSampler(Sampling(temperature=0), processors=[only_first], criteria=[stop])

    assert sampler.sample(logits, [5]) == 0
    assert sampler.sample(logits, [5, 6]) == NO_TOKEN
    assert calls == [[5]]
    assert logits.tolist() == [1, 2, 3]
    with pytest.raises(LayoutError, match="returned shape"):
        TokenSampler(Sampling(), processors=[lambda _, scores: scores[:2]]).sample(logits)
