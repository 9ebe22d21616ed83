"""Qwen3-Next: gated delta nets, every fourth layer gated attention, experts.

Source: llama.cpp src/models/qwen3next.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, DeltaLayout, Mixture, Rope

ARCHITECTURE = Architecture(
    "qwen3next",
    Rope.HALVES,
    head_norms=True,
    gated=True,
    ffn_norm="post_attention_norm",
    mixture=Mixture(normed=True, shared=True),
    delta=DeltaLayout(grouped=True),
)
