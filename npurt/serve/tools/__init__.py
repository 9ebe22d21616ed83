"""Calls of functions in the text of a model: a file for each format of calls.

May import the room `http`.
Begin with `calls`; `wanted` reads the tools of a request.
"""
