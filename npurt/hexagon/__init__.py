"""The Qualcomm Hexagon CDSP, called through the system's libcdsprpc; npurt's own code runs on it.

The subpackages, lowest first, are `idl`, `fastrpc`, `layout`, `host`, `plan` and `session`,
`connect`, `device`, `doctor`.  The docstring of each subpackage states its purpose and the
subpackages that it may import; tests/test_layers.py checks the imports.
"""
