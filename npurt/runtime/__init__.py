"""Run products and graphs on devices, verify the results, and record which device ran which op.

The subpackages, lowest layer first: `report` and `open`, `execute`, `api`.
The docstring of each subpackage has its purpose and its allowed imports, which
tests/test_layers.py enforces.
"""
