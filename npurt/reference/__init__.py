"""The device ``numpy``: runs every op of a graph by its equation, in float32.

The device needs no compiled code, so it runs on every platform of numpy.  It is slow.
"""
