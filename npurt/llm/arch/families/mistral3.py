"""Ministral 3: Llama with queries scaled by a factor that grows with the position.

With YaRN, cos and sin are not scaled, because the file's ``yarn_log_multiplier`` cancels YaRN's
magnitude: the attention factor is the inverse of this magnitude.
Source: llama.cpp src/models/mistral3.cpp, conversion/mistral3.py, MIT.
"""

from dataclasses import replace

import numpy as np

from npurt.llm.arch.architecture import Architecture, RopePairs
from npurt.llm.file.config import Config


def _complete(config: Config) -> Config:
    scaling = config.scaling
    if scaling.kind != "yarn":
        return config
    factor = 1 / (0.1 * float(np.log(scaling.factor)) + 1)
    return replace(config, scaling=replace(scaling, attention_factor=factor))


ARCHITECTURE = Architecture("mistral3", RopePairs.ADJACENT, complete=_complete)
