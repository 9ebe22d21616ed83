"""The CPU device: C kernels called through cffi.  Importing this package loads no library.

Subpackages, lowest first: `kernels`, `pool`, `state`, `lowering`.  The module `device` has the
`Device` class.  The docstring of each subpackage gives its purpose and its permitted imports, which
tests/test_layers.py enforces.
"""
