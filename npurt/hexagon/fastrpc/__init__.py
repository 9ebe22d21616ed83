"""The FastRPC library of the system: its ABI, error codes, memory, handles, and calls into it.

May import `idl`.  Nothing in this package depends on npurt's own code on the DSP.
Begin with `lib`, which finds and opens the library.
"""
