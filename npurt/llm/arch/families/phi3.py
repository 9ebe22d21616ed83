"""Phi-3 and Phi-4: fused q, k and v, fused gate and up, long and short rotary factors.

The attention window is applied, as in transformers; llama.cpp ignores the window.
Sources: llama.cpp src/models/phi3.cpp, conversion/phi.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, LayerRule, RopePairs
from npurt.llm.file.config import Config


def _rule(config: Config, layer: int) -> LayerRule:
    del layer
    return LayerRule(config.conventions.window)


ARCHITECTURE = Architecture("phi3", RopePairs.HALVES, layer=_rule)
