"""OLMo 2 and 3: norms after the attention and the feed-forward part, q and k normed over all heads.

OLMo 3 has a sliding window in three of four layers; a file without a window is an OLMo 2 model.
Sources: llama.cpp src/models/olmo2.cpp, MIT; OLMo 2 and 3 reports.
"""

from npurt.llm.arch.architecture import Architecture, Norms, QKNorm, RopePairs, sliding

ARCHITECTURE = Architecture(
    "olmo2",
    RopePairs.HALVES,
    qk_norm=QKNorm.WHOLE,
    norms=Norms(
        before_mixer=None,
        after_mixer="post_attention_norm",
        before_ffn=None,
        after_ffn="post_ffw_norm",
    ),
    layer=sliding(4),
)
