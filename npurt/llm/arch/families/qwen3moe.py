"""Qwen3-30B-A3B and Qwen3-235B-A22B: Qwen3 with experts.

Source: llama.cpp src/models/qwen3moe.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Mixture, QKNorm, RopePairs

ARCHITECTURE = Architecture(
    "qwen3moe", RopePairs.HALVES, qk_norm=QKNorm.HEAD, mixture=Mixture(normed=True, shared=False)
)
