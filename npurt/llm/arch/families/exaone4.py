"""EXAONE 4: norms after the attention and the feed-forward part, RMSNorm on each head of q and k.

If the model has a window, every fourth layer attends to all positions and does not rotate q and k.
Sources: llama.cpp src/models/exaone4.cpp, conversion/exaone.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, LayerRule, Norms, QKNorm, RopePairs, sliding
from npurt.llm.file.config import Config

SLIDING = sliding(4)


def _rule(config: Config, layer: int) -> LayerRule:
    if not config.conventions.window:
        return LayerRule()
    rule = SLIDING(config, layer)
    return LayerRule(rule.window, rotates=rule.window > 0)


ARCHITECTURE = Architecture(
    "exaone4",
    RopePairs.HALVES,
    qk_norm=QKNorm.HEAD,
    norms=Norms(
        before_mixer=None,
        after_mixer="post_attention_norm",
        before_ffn=None,
        after_ffn="post_ffw_norm",
    ),
    layer=_rule,
)
