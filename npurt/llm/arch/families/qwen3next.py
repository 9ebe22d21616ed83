"""Qwen3-Next: gated delta nets and experts; every fourth layer has gated attention.

Source: llama.cpp src/models/qwen3next.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, DeltaLayout, Mixture, Norms, QKNorm, RopePairs

ARCHITECTURE = Architecture(
    "qwen3next",
    RopePairs.HALVES,
    qk_norm=QKNorm.HEAD,
    gated=True,
    norms=Norms(before_ffn="post_attention_norm"),
    mixture=Mixture(normed=True, shared=True),
    delta=DeltaLayout(grouped=True),
)
