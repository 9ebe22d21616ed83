"""As llama_cpp.llama_tokenizer."""

from npurt.compat.llama_cpp.context import LlamaTokenizer

__all__ = ["LlamaTokenizer"]
