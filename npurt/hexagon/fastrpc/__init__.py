"""The FastRPC library of the system: its ABI, error codes, memory, handles, and calls into it.

May import the room `idl`.  Knows nothing of npurt's own code on the DSP.
Begin with `lib`, which finds and opens the library.
"""
