"""The kernels: a C file each, for each instruction set; the interface of the library to Python.

`npurt_cpu.h` declares what Python calls; `ops.inc` and `formats.inc` are the tables of ops and of
tensor types.  It imports no other room.  Begin with `npurt_cpu.h`, then `kernels.h`.
"""
