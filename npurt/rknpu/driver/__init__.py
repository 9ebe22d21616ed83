"""The two kernel drivers, rocket and rknpu, behind one interface: memory, jobs, detection.

`native` has the C library that runs a job in one call; `system` makes the system calls, also to the
simulator.
May import `isa` and `plan`.  Begin with `base`, then `rocket` or `vendor`.
"""
