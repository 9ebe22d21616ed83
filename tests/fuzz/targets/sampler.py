"""Fuzz the sampler: compare settings and logits at limits with definitions in plain Python."""

import math

import numpy as np

from npurt.errors import NumericsError
from npurt.llm.decode.sampler import Sampling, TokenSampler
from tests.fuzz import sizes

RUNS = 3000

NUMBERS = (
    0,
    1,
    -1,
    2,
    40,
    64,
    1 << 31,
    (1 << 63) - 1,
    1 << 64,
    True,
    None,
    "1",
    "nan",
    [],
    10**400,
)
FLOATS = (0.0, -0.0, 1.0, 0.05, 0.95, 1e-45, 5e-324, 1e-300, 1 + 2**-52, 2.0, -1e-9, 1e30, 1e308,
          math.inf, -math.inf, math.nan)  # fmt: skip
LOGITS = (0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 88.0, -88.0, 1e30, -1e30, 3.4e38, -3.4e38, -math.inf)
BAD = (math.inf, math.nan)
# Settings without a definition in `check`.
MORE_NAMES = """
    typical_p top_n_sigma xtc_probability xtc_threshold dry_multiplier dry_base dry_allowed_length
    dry_penalty_last_n frequency_penalty presence_penalty
"""
MORE = frozenset(MORE_NAMES.split())


def mutate(rng):
    settings, odd = {}, rng.random() < 0.2
    for name in ("temperature", "top_p", "min_p", "repeat_penalty"):
        good = (rng.random(), rng.random(), 0.0, 1.0, 5e-324, 1e-45, 1 - 2**-53)
        if rng.random() < 0.7:
            settings[name] = rng.choice((*FLOATS, *NUMBERS[:4]) if odd else good)
    if rng.random() < 0.4:
        settings["repeat_penalty"] = rng.choice((1e-300, 1e-40, 1e-3, 2.0, 1e30, 1e308))
        settings["temperature"] = rng.choice((0, 1e-300, 1e-3, 2.0, 1e30, 1e308))
    for name in ("top_k", "repeat_last_n", "seed"):
        if rng.random() < 0.7:
            large = (1 << 128) - 1 if name == "seed" else 10**400
            good = (0, 1, 2, 40, 1 << 31, large, rng.randrange(50))
            settings[name] = rng.choice(NUMBERS if odd else good)
    if rng.random() < 0.5:
        settings |= more_settings(rng, odd)
    count = rng.choice((1, 2, 3, 127, 128, 129, 1000, sizes.limit(rng, 12) or 1))
    return {
        "settings": settings,
        "count": count,
        "logits": [[rng.randrange(count), rng.choice(LOGITS + BAD * (rng.random() < 0.05))]
                   for _ in range(rng.choice((0, 1, 5, count)))],
        "spread": rng.choice((0, 1e-3, 1, 10, 1e30)),
        "history": [rng.randrange(count) for _ in range(rng.choice((0, 1, 5, 100)))]
        + [rng.choice((-1, count, 1 << 40))] * (rng.random() < 0.05),
        "never": [rng.randrange(count) for _ in range(rng.choice((0, 0, 1, count)))],
        "noise": rng.randrange(1 << 30),
    }  # fmt: skip


def more_settings(rng, odd):
    """Return some of `MORE`."""
    ranges = {
        "typical_p": (0.0, 5e-324, rng.random(), 1.0),
        "top_n_sigma": (-1e308, 0.0, 1e-300, rng.random(), 1e308),
        "xtc_probability": (0.0, rng.random(), 1.0),
        "xtc_threshold": (0.0, rng.random(), 1.0),
        "dry_multiplier": (0.0, 1e-300, rng.random(), 1e308),
        "dry_base": (1.0, 1 + 2**-52, 1.01, 1.75, 1e308),
        "dry_allowed_length": (0, 1, 2, 10**400),
        "dry_penalty_last_n": (-1, 0, 1, 5, 10**400),
        "frequency_penalty": (-1e308, -2.0, 0.0, rng.random(), 1e308),
        "presence_penalty": (-1e308, -2.0, 0.0, rng.random(), 1e308),
    }
    names = rng.sample(sorted(ranges), rng.randrange(1, 5))
    return {n: rng.choice(FLOATS if odd and rng.random() < 0.3 else ranges[n]) for n in names}


def run(value):
    sampling = Sampling(**value["settings"])
    rng = np.random.default_rng(value["noise"])
    logits = (rng.standard_normal(value["count"]) * value["spread"]).astype(np.float32)
    for place, logit in value["logits"]:
        logits[place] = logit
    kept = logits.copy()
    sampler = TokenSampler(sampling, value["never"])
    ids, shares = sampler.distribution(logits, value["history"])
    chosen = [sampler.sample(logits, value["history"]) for _ in range(3)]
    assert np.array_equal(kept, logits, equal_nan=True), "the logits were changed"
    if value["settings"].keys() & MORE:
        assert math.isclose(shares.sum(), 1, rel_tol=1e-9)
        assert len(set(ids.tolist())) == len(ids) == len(shares) > 0
        assert not set(ids.tolist()) & set(value["never"]), "what must not be sampled was"
    else:
        check(sampling, logits, value, ids.tolist(), shares)
    assert set(chosen) <= set(ids[shares > 0].tolist()) | set(ids[:1].tolist())
    return "sampled"


def check(sampling, logits, value, ids, shares):
    """Compare the result with the steps of llama.cpp's chain, in double precision."""
    assert len(ids) == len(set(ids)) == len(shares) > 0
    assert np.isfinite(shares).all()
    assert (shares >= 0).all()
    assert math.isclose(shares.sum(), 1, rel_tol=1e-9)
    assert not set(ids) & set(value["never"]), "what must not be sampled was"
    scores = penalised(sampling, logits, value)
    alive = [i for i in np.argsort(-scores, kind="stable").tolist() if scores[i] > -math.inf]
    if sampling.temperature == 0:
        assert ids == alive[:1]
        return
    if sampling.top_k:
        alive = alive[: sampling.top_k]
    assert ids == alive[: len(ids)], "those kept are not the best, in order"
    weights = np.exp(scores[alive].astype(np.float64) - float(scores[alive[0]]))
    # probabilities of the candidates before each one
    before = np.concatenate([[0], np.cumsum(weights / weights.sum())[:-1]])
    # A candidate remains if those before it have less than top_p, and it has at least min_p times
    # the highest probability.  If a value is within rounding of a limit, both results are right.
    sure = [(b < sampling.top_p * (1 - 1e-9) or i == 0) and w > sampling.min_p * (1 + 1e-9)
            for i, (b, w) in enumerate(zip(before, weights, strict=True))]  # fmt: skip
    may = [(b < sampling.top_p * (1 + 1e-9) or i == 0) and w >= sampling.min_p * (1 - 1e-9)
           for i, (b, w) in enumerate(zip(before, weights, strict=True))]  # fmt: skip
    minimum, maximum = leading(sure), leading(may)
    assert minimum <= len(ids) <= max(1, maximum), (
        f"{len(ids)} are kept, not {minimum} to {maximum}"
    )


def leading(flags):
    """Return the number of true *flags* before the first false one."""
    return flags.index(False) if False in flags else len(flags)


def penalised(sampling, logits, value):
    scores = logits.copy()
    scores[list(value["never"])] = -np.inf
    n = sampling.repeat_last_n
    recent = value["history"] if n < 0 else value["history"][-n:] if n else []
    largest = float(np.finfo(np.float32).max)
    penalty = np.float32(min(max(sampling.repeat_penalty, 2.0**-126), largest))
    with np.errstate(all="ignore"):
        for token in set(recent) if sampling.repeat_penalty != 1 else ():
            old = scores[token]
            new = old / penalty if old > 0 else old * penalty
            scores[token] = min(max(new, -largest), largest) if np.isfinite(old) else old
    if not np.isfinite(scores.max()):
        raise NumericsError("nothing can be sampled", remedy="none: the test's own reading")
    return scores


def unsorted():
    """Leave the candidates of a large vocabulary unsorted."""
    from npurt.llm.decode.samplers import top_k

    top_k.best = lambda logits, k: np.argpartition(-logits, min(k, len(logits)) - 1)[:k]


PLANTED = {"unsorted": unsorted}
