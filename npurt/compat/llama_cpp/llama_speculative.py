"""Names of the module llama_cpp.llama_speculative."""

from npurt.compat.llama_cpp.lists import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
