"""A loaded model and the contexts that run on it.

This package may import `file`, `text`, `state` and `arch`.  Read `model` first, which is loaded
once; then `context`, the tokens and the state of a sequence.
"""
