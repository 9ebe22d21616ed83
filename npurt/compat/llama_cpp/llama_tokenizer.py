"""As llama_cpp.llama_tokenizer."""

from npurt.compat.llama_cpp.context import BaseLlamaTokenizer, LlamaTokenizer
from npurt.compat.llama_cpp.refused import refused_class

LlamaHFTokenizer = refused_class("LlamaHFTokenizer", "leave it out: npurt has that of the file")

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]
