"""The checkpoint that is converted: its weights, its settings, and what they are called in GGUF.

May import the rooms `file` and `arch`; `fused_experts` also imports `npurt.llm.convert.types`.
Begin with `families`, then `keys`.
"""
