"""List the samplers in the order in which they apply: the order of llama.cpp's default chain.

Source: llama.cpp common/common.h, common_params_sampling, MIT: penalties, dry, top_n_sigma, top_k,
typ_p, top_p, min_p, xtc, temperature; common/sampling.cpp: logit_bias before them.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from npurt.llm.decode.samplers.candidates import Candidates, Text
from npurt.llm.decode.samplers.dry import dry
from npurt.llm.decode.samplers.logit_bias import logit_bias
from npurt.llm.decode.samplers.min_p import min_p
from npurt.llm.decode.samplers.penalties import penalties
from npurt.llm.decode.samplers.settings import Sampling
from npurt.llm.decode.samplers.temperature import greedy, temperature
from npurt.llm.decode.samplers.top_k import top_k
from npurt.llm.decode.samplers.top_n_sigma import top_n_sigma
from npurt.llm.decode.samplers.top_p import top_p
from npurt.llm.decode.samplers.typical_p import typical_p
from npurt.llm.decode.samplers.xtc import xtc

Step = Callable[[Candidates, Text], Candidates]
LARGEST_XTC_THRESHOLD = 0.5  # above 0.5, at most one token is predictable, and XTC drops nothing


def changes(s: Sampling) -> list[Step]:
    """Return the samplers that change the logits ``[V]`` with the settings *s*, in order."""
    ids = np.fromiter(s.logit_bias, np.int64, len(s.logit_bias))
    biases = np.fromiter(s.logit_bias.values(), np.float64, len(s.logit_bias))
    penalised = s.repeat_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0
    steps = [
        (bool(s.logit_bias), partial(logit_bias, ids=ids, biases=biases)),
        (
            penalised and s.repeat_last_n != 0,
            partial(
                penalties, repeat=s.repeat_penalty, frequency=s.frequency_penalty,
                presence=s.presence_penalty, last=s.repeat_last_n,
            ),
        ),
        (
            s.dry_multiplier > 0 and s.dry_penalty_last_n != 0,
            partial(
                dry, multiplier=s.dry_multiplier, base=s.dry_base,
                allowed=s.dry_allowed_length, last=s.dry_penalty_last_n,
            ),
        ),
    ]  # fmt: skip
    return [step for active, step in steps if active]


def filters(s: Sampling) -> list[Step]:
    """Return the samplers that remove candidates with the settings *s*, in order.

    Candidates are sorted from `top_k` on.
    """
    if s.temperature == 0:
        return [greedy]
    dropping = s.xtc_probability > 0 and s.xtc_threshold <= LARGEST_XTC_THRESHOLD
    steps = [
        (s.top_n_sigma > 0, partial(top_n_sigma, n=s.top_n_sigma)),
        (True, partial(top_k, k=s.top_k)),
        (s.typical_p < 1, partial(typical_p, p=s.typical_p)),
        (s.top_p < 1, partial(top_p, p=s.top_p)),
        (s.min_p > 0, partial(min_p, p=s.min_p)),
        (dropping, partial(xtc, probability=s.xtc_probability, threshold=s.xtc_threshold)),
        (True, partial(temperature, value=s.temperature)),
    ]
    return [step for active, step in steps if active]
