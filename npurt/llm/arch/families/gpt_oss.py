"""gpt-oss: experts with biases and a clamped gated unit, attention sinks, windows in even layers.

The norm before the feed-forward part is called ``post_attention_norm``.  The expert weights are a
softmax over the scores of the chosen experts.  YaRN's ramp is not rounded to whole frequencies: the
released config.json says so, but the GGUF file has no key for it.
Sources: llama.cpp src/models/openai-moe.cpp, MIT; the gpt-oss model card, 2025.
"""

from dataclasses import replace

from npurt.graph.ops import Gating
from npurt.llm.arch.architecture import (
    Architecture,
    Mixture,
    Norms,
    RopePairs,
    UnitConventions,
    sliding,
)
from npurt.llm.file.config import Config


def _complete(config: Config) -> Config:
    return replace(config, scaling=replace(config.scaling, rounded=False))


ARCHITECTURE = Architecture(
    "gpt-oss",
    RopePairs.HALVES,
    sinks=True,
    norms=Norms(before_ffn="post_attention_norm"),
    unit=UnitConventions(limit=7.0, alpha=1.702, up_offset=1.0),
    mixture=Mixture(normed=False, shared=False, gating=Gating.SOFTMAX_CHOSEN),
    layer=sliding(2),
    complete=_complete,
)
