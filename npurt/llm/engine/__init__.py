"""The engine: evaluate many sequences together, with tokens of all of them in each step.

This package may import all packages of `npurt.llm` except `measure` and `convert`.  Read
`scheduler` first, which chooses the tokens of a step; `engine` runs the scheduler in a thread.
"""
