"""LFM2: short convolutions, gated on both sides, between layers of attention.

Layers without key heads are the convolutions.  The last norm is called ``token_embd_norm``.
Sources: llama.cpp src/models/lfm2.cpp, conversion/lfm2.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Norms, QKNorm, Rope

ARCHITECTURE = Architecture(
    "lfm2",
    Rope.HALVES,
    qk_norm=QKNorm.HEAD,
    norms=Norms(output="token_embd_norm"),
    convolution=True,
)
