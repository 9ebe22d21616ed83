"""Calls of functions in the text of a model: one file for each way in which models write them.

May import the room `http`.
Begin with `calls`; `wanted` reads the tools of a request.
"""
