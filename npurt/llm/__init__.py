"""GGUF language models: file, tokenizer, chat template, sampling, generation.

The subpackages, lowest layer first: `file`, `text` and `state`, `arch`, `session`, `spec`,
`decode`, `measure`.  The docstring of each subpackage names the subpackages that it may import;
tests/test_layers.py enforces the order.
"""

from npurt import moved

moved.modules({
    "npurt.llm.bench": "npurt.llm.measure.bench",
    "npurt.llm.chat": "npurt.llm.text.chat",
    "npurt.llm.config": "npurt.llm.file.config",
    "npurt.llm.context": "npurt.llm.session.context",
    "npurt.llm.gguf": "npurt.llm.file.gguf",
    "npurt.llm.model": "npurt.llm.decode.model",
    "npurt.llm.perplexity": "npurt.llm.measure.perplexity",
    "npurt.llm.sampler": "npurt.llm.decode.sampler",
    "npurt.llm.tokenizer": "npurt.llm.text.tokenizer",
    "npurt.llm.weights": "npurt.llm.arch.weights",
})  # fmt: skip
