"""As llama_cpp.llama_grammar."""

from npurt.compat.llama_cpp.lists import LlamaGrammar

__all__ = ["LlamaGrammar"]
