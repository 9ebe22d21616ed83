"""The Hexagon as a `Device`: weights in session memory, batches of products, states of delta nets.

May import every other subpackage except `doctor`.
Begin with `device`, then `multiply` and `batch`.
"""
