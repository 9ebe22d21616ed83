"""Function calls in completions: one module for each format of calls.

May import the package `http`.
Begin with `calls`; `wanted` reads the tools of a request.
"""
