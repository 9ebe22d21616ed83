"""Gemma 1 to 3: GELU, and embeddings multiplied by the square root of the width.

Gemma 2 and 3 have norms before and after the attention and the feed-forward part.  Gemma 2 has soft
caps and a sliding window in every second layer.  Gemma 3 normalises q and k and has a sliding
window, with a rotary base of 10,000, in five of six layers.  The file does not state the
sliding-window layers, their rotary base and the attention scale of the largest models.  The
converter adds 1 to the norm weights.
Sources: llama.cpp src/models/gemma.cpp, gemma2.cpp, gemma3.cpp, conversion/gemma.py, MIT; technical
reports of Gemma, Gemma 2 and 3.
"""

import math
from dataclasses import replace

from npurt.graph.ops import Activation
from npurt.llm.arch.architecture import (
    Architecture,
    Norms,
    QKNorm,
    RopePairs,
    UnitConventions,
    sliding,
)
from npurt.llm.file.config import Config

LOCAL_BASE = 10_000.0
LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B model: it scales by width / heads


def _complete(config: Config) -> Config:
    scale = config.attention_scale
    if config.n_layers == LARGEST.get(config.architecture):
        scale = (config.width / config.n_heads) ** -0.5
    conventions = replace(config.conventions, embedding_scale=math.sqrt(config.width))
    if config.architecture == "gemma3" and conventions.local_rope_base is None:
        conventions = replace(conventions, local_rope_base=LOCAL_BASE)
    return replace(config, attention_scale=scale, conventions=conventions)


NORMS = Norms(after_mixer="post_attention_norm", after_ffn="post_ffw_norm")
UNIT = UnitConventions(Activation.GELU)
GEMMA = Architecture("gemma", RopePairs.HALVES, unit=UNIT, complete=_complete)
GEMMA2 = Architecture(
    "gemma2", RopePairs.HALVES, norms=NORMS, unit=UNIT, layer=sliding(2), complete=_complete
)
GEMMA3 = Architecture(
    "gemma3",
    RopePairs.HALVES,
    qk_norm=QKNorm.HEAD,
    norms=NORMS,
    unit=UNIT,
    layer=sliding(6),
    complete=_complete,
)
