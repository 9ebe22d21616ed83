"""What the DSP multiplies, in numpy: weight images, quantised activations, states, error bounds.

May import the rooms `idl` and `fastrpc`; needs neither a device nor C.
Begin with `formats`, the table of weight formats, and `images`.
"""
