"""SmolLM3: Llama without rotation in every fourth layer.  The file does not state this.

Source: llama.cpp src/models/smollm3.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, LayerRule, RopePairs
from npurt.llm.file.config import Config


def _rule(config: Config, layer: int) -> LayerRule:
    del config
    return LayerRule(rotates=(layer + 1) % 4 != 0)


ARCHITECTURE = Architecture("smollm3", RopePairs.ADJACENT, layer=_rule)
