"""Read the weights and settings of a checkpoint, and map their names to GGUF names.

May import the subpackages `file` and `arch`; `fused_experts` also imports
`npurt.llm.convert.types`.  Begin with `families`, then `keys`.
"""
