"""The CPU device: kernels in C behind cffi.  Importing this opens nothing.

The rooms, lowest first: `kernels`, `pool`, `state`, `lowering`; `device` is the `Device`.  The
docstring of each says what it is for and what it may import; tests/test_layers.py enforces it.
"""
