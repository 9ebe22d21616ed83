"""From a part of a graph to programs of the pool, and the segment that runs them.

May import `kernels`, `pool` and `state`.  Begin with `lower`, then `part`.
"""
