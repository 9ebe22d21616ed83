"""A model that answers requests: prompts, the texts under way, and what is read from them.

May import the rooms `engine`, `http` and `tools`.
Begin with `front`.
"""
