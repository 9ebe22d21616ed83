"""GGUF language models: file, tokenizer, chat template, sampling, generation.

The subpackages, lowest layer first: `file`, `text` and `state`, `arch`, `session`, `spec`,
`decode`, `engine`, `measure` and `convert`.  The docstring of each subpackage names the
subpackages that it may import; tests/test_layers.py enforces the order.
"""
