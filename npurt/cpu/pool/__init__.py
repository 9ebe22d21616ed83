"""The thread pool and its programs: `program` builds arrays of ops, `pool.c` runs them.

May import `kernels`.  Begin with `engine`, then `program`.  `pool.c` describes how the threads
divide the work.
"""
