"""A model that answers requests: its prompts, the active completions, and their parsed parts.

May import the packages `engine`, `http` and `tools`.
Begin with `front`.
"""
