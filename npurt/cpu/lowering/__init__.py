"""Lower a part of a graph to programs for the thread pool; run them as a `Segment`.

May import `kernels`, `pool` and `state`.  Begin with `lower`, then `part`.
"""
