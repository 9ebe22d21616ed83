"""An open model with one sequence: loading, evaluation, states, one thread at a time.

May import the rooms `file`, `text`, `state` and `arch`.
Begin with `context`.
"""
