"""The tokenizer of a checkpoint, as metadata of a GGUF file.

May import the rooms `file` and `text`, and `npurt.llm.convert.checkpoint`.
Begin with `vocabulary`.
"""
