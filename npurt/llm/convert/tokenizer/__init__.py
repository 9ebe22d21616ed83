"""Convert the tokenizer of a checkpoint to GGUF metadata.

May import the subpackages `file` and `text`, and `npurt.llm.convert.checkpoint`.
Begin with `vocabulary`.
"""
