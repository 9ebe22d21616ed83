"""Samplers: pure functions that change or remove the candidates of the next token, one a file.

Each takes `Candidates` and the `Text` before them, and returns `Candidates`.  May import each other
and the layers below, no other room.  Begin with `candidates`, then `chain`, the order.
"""
