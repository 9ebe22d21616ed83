"""Qwen2 and Qwen2.5: rotation of halves, biases on q, k and v, often tied embeddings.

Source: llama.cpp src/llama-model.cpp (tensors, llama_model_rope_type), MIT.
"""

from npurt.llm.arch.architecture import Architecture, RopePairs

ARCHITECTURE = Architecture("qwen2", RopePairs.HALVES)
