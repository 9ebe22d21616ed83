"""Compatible interfaces of other libraries over `npurt.Llama`, for existing scripts.

Begin with `llama_cpp`.
"""
