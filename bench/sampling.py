"""Measure the time to sample a token from a vocabulary of 152,000, by sampler settings.

Usage: python bench/sampling.py [--json]
"""

import argparse
import json
import time

import numpy as np

from npurt.llm.decode.sampler import Sampling, TokenSampler

VOCABULARY = 151_936  # tokens of Qwen2.5's vocabulary
ROUNDS = 31
SETTINGS = {
    "greedy": {"temperature": 0},
    "defaults": {},
    "repeat_penalty": {"repeat_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 0.5},
    "typical_p": {"typical_p": 0.9},
    "top_n_sigma": {"top_n_sigma": 2.0},
    "xtc": {"xtc_probability": 0.5},
    "dry": {"dry_multiplier": 0.8},
    "logit_bias": {"logit_bias": {5: 1.0}},
}


def main() -> None:
    """Print the median time for each setting, in microseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(VOCABULARY) * 3).astype(np.float32)
    history = rng.integers(0, VOCABULARY, 1000).tolist()
    samplers = {}
    for name, settings in SETTINGS.items():
        try:
            samplers[name] = TokenSampler(Sampling(seed=1, **settings))
        except TypeError:  # an older npurt lacks this setting
            continue
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(ROUNDS):
        for name, sampler in samplers.items():
            tokens = list(history)
            start = time.perf_counter()
            for _ in range(10):
                tokens.append(sampler.sample(logits, tokens))
            seconds[name].append((time.perf_counter() - start) / 10)
    medians = {name: round(float(np.median(each)) * 1e6, 1) for name, each in seconds.items()}
    if arguments.json:
        print(json.dumps(medians))
        return
    for name, each in medians.items():
        print(f"{name:20} {each:8.1f} us")


if __name__ == "__main__":
    main()
