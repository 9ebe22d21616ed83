"""The kernels, one C file per kernel and instruction set, and the C library's Python interface.

`npurt_cpu.h` declares the functions that Python calls; `ops.inc` and `formats.inc` are the tables
of ops and of tensor types.  May import no other subpackage of `npurt.cpu`.  Begin with
`npurt_cpu.h`, then `kernels.h`.
"""
