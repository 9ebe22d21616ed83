"""Read and write GGUF files: tensors, metadata and the model configuration in the metadata.

`remote` reads the header of a file on a server, `writer` writes files, and `adapter` reads LoRA
adapters.

May import no other subpackage of `npurt.llm`.
Begin with `gguf`, then `config`.
"""
