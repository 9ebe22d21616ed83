"""Qwen3: Qwen2 with norms on the heads of q and k, which have a width of their own.

Source: llama.cpp src/models/qwen3.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture("qwen3", Rope.HALVES, qk_norm=QKNorm.HEAD)
