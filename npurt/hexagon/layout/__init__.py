"""The DSP's operands in numpy: weight images, quantised activations, states, error bounds.

May import `idl` and `fastrpc`.  The code needs neither a device nor a compiled library.
Begin with `formats`, the table of weight formats, and `images`.
"""
