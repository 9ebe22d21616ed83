"""Qwen3.5 and 3.6: gated delta nets, every fourth layer gated attention.

Only part of a head rotates.  Sections of its frequencies (interleaved M-RoPE) take positions of
image rows and columns; in text all positions are equal, and sections make no difference.  The
converter reorders the heads of v, so that key heads repeat in turn.
Source: llama.cpp src/models/qwen35.cpp, conversion/qwen.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, DeltaLayout, Norms, QKNorm, Rope

ARCHITECTURE = Architecture(
    "qwen35",
    Rope.HALVES,
    qk_norm=QKNorm.HEAD,
    gated=True,
    norms=Norms(before_ffn="post_attention_norm"),
    delta=DeltaLayout(grouped=False),
)
