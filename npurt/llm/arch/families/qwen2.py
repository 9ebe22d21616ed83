"""Qwen2 and Qwen2.5: rotary halves, biases on q, k and v, embeddings often tied.

Source: llama.cpp src/llama-model.cpp (tensors, llama_model_rope_type), MIT.
"""

from npurt.llm.arch.architecture import Architecture, Rope

ARCHITECTURE = Architecture("qwen2", Rope.HALVES)
