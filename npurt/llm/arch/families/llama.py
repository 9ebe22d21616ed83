"""Llama 2 and 3, SmolLM2, TinyLlama, Mistral, Mixtral: adjacent rotary pairs, optional biases.

The converter interleaves the rows of Wq and Wk, so the pairs are (2i, 2i + 1), although the
original checkpoints rotate halves.  The tensor ``rope_freqs.weight`` holds Llama 3's scaling.
Mixtral has experts.
Source: llama.cpp src/llama-model.cpp (tensors, llama_model_rope_type), src/models/llama.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Mixture, RopePairs

ARCHITECTURE = Architecture("llama", RopePairs.ADJACENT, mixture=Mixture(normed=True, shared=False))
