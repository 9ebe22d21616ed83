"""Many texts at once: an engine that evaluates tokens of all of them in each step.

May import every other room but `measure` and `convert`.  Begin with `scheduler`, which decides what
a step does; `engine` gives it a thread.
"""
