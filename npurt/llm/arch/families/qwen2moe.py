"""Qwen1.5-MoE, Qwen2-57B-A14B: Qwen2 with experts whose weights are not normalised to sum to 1.

Source: llama.cpp src/models/qwen2moe.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Mixture, RopePairs

ARCHITECTURE = Architecture(
    "qwen2moe", RopePairs.HALVES, mixture=Mixture(normed=False, shared=True)
)
