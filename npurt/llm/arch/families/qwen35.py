"""Qwen3.5 and 3.6: gated delta nets; every fourth layer has gated attention.

Only part of a head rotates.  Interleaved M-RoPE assigns sections of the frequencies to time, image
rows and image columns; for text these three positions are equal, so the sections have no effect.
The converter reorders the heads of v, so that v head h uses k head h % k_heads.
Source: llama.cpp src/models/qwen35.cpp, conversion/qwen.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, DeltaLayout, Norms, QKNorm, RopePairs

ARCHITECTURE = Architecture(
    "qwen35",
    RopePairs.HALVES,
    qk_norm=QKNorm.HEAD,
    gated=True,
    norms=Norms(before_ffn="post_attention_norm"),
    delta=DeltaLayout(grouped=False),
)
