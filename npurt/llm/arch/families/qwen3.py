"""Qwen3: Qwen2 with a norm on each head of q and k; the file states the head width.

Source: llama.cpp src/models/qwen3.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, QKNorm, Rope

ARCHITECTURE = Architecture("qwen3", Rope.HALVES, qk_norm=QKNorm.HEAD)
