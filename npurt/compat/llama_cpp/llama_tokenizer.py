"""Names of the module llama_cpp.llama_tokenizer."""

from npurt.compat.llama_cpp.context import BaseLlamaTokenizer, LlamaTokenizer
from npurt.compat.llama_cpp.refused import refused_class

LlamaHFTokenizer = refused_class("LlamaHFTokenizer", "omit it: npurt uses the file's tokenizer")

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]
