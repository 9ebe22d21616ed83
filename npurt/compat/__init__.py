"""Interfaces of other libraries over `npurt.Llama`, for scripts that were written for them.

Begin with `llama_cpp`.
"""
