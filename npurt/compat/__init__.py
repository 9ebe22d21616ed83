"""Interfaces of other libraries, implemented with `npurt.Llama`, for existing scripts.

Begin with `llama_cpp`.
"""
