"""Several models in one server: which there are, and which of them are loaded.

May import the rooms `model`, `http` and `engine`.
Begin with `router`.
"""
