"""LFM2: layers with gated short convolutions between attention layers.

A layer with 0 key heads has a convolution.  The output norm is called ``token_embd_norm``.
Sources: llama.cpp src/models/lfm2.cpp, conversion/lfm2.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Norms, QKNorm, RopePairs

ARCHITECTURE = Architecture(
    "lfm2",
    RopePairs.HALVES,
    qk_norm=QKNorm.HEAD,
    norms=Norms(output="token_embd_norm"),
    convolution=True,
)
