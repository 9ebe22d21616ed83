"""The device ``numpy``: every op of a graph by its equation, in float32 numpy and nothing else.

It needs no compiled code, so it runs wherever numpy does.  It is slow.
"""
