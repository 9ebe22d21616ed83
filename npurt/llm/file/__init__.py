"""A GGUF file: its tensors, its metadata, and the configuration that the metadata states.

Also the header of one on a server (`remote`), how one is written (`writer`), and LoRA adapters.

May import no other room.
Begin with `gguf`, then `config`.
"""
