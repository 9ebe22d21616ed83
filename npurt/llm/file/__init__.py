"""A GGUF file: its tensors, its metadata, and the configuration that the metadata states.

May import no other room.
Begin with `gguf`, then `config`.
"""
