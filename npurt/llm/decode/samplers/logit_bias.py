"""Logit bias: add a number to the logits of given tokens."""

import numpy as np

from npurt.llm.decode.samplers.candidates import F64, Candidates, Ids, Text, check_ids
from npurt.llm.decode.samplers.checks import LARGEST


def logit_bias(candidates: Candidates, _: Text, *, ids: Ids, biases: F64) -> Candidates:
    """Add *biases* ``[N]`` to the logits of *ids* ``[N]``; -inf excludes a token.

    Finite logits stay finite, unless the bias is -inf.
    Source: OpenAI, "Create chat completion", logit_bias: added to the logits before sampling.

    Raises:
        LayoutError: An id is not in the vocabulary.
    """
    check_ids("logit_bias", ids, len(candidates.logits))
    logits = candidates.logits.copy()
    changed = logits[ids] + biases
    finite = np.isfinite(logits[ids]) & np.isfinite(biases)
    logits[ids] = np.where(finite, np.clip(changed, -LARGEST, LARGEST), changed)
    return Candidates(logits)
