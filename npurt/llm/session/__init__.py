"""A loaded model, and contexts that run on it: evaluation, states, one thread at a time.

May import the rooms `file`, `text`, `state` and `arch`.
Begin with `model`, which is loaded once, and `context`, the tokens of a sequence.
"""
