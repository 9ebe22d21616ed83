"""The thread pool and its programs: `pool.c` runs what `program` builds.

May import `kernels`.  Begin with `engine`, then `program`; the protocol of the threads is described
in `pool.c`.
"""
