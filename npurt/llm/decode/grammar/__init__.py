"""Structured output: restrict sampling to the tokens that a grammar allows.

`grammar` checks the grammars of callers; `constraint` computes the allowed tokens for one sequence.
The optional package llguidance parses; only `library` imports it.
"""
