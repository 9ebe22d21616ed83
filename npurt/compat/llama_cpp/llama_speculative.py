"""As llama_cpp.llama_speculative."""

from npurt.compat.llama_cpp.lists import LlamaPromptLookupDecoding

__all__ = ["LlamaPromptLookupDecoding"]
