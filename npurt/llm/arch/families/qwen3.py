"""Qwen3: Qwen2 with a norm on each head of q and k; the file states the head width.

Source: llama.cpp src/models/qwen3.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, QKNorm, RopePairs

ARCHITECTURE = Architecture("qwen3", RopePairs.HALVES, qk_norm=QKNorm.HEAD)
