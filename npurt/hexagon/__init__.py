"""The Qualcomm Hexagon CDSP, through the system's libcdsprpc, with our own code on the DSP.

Rooms, lowest first: `idl`, `fastrpc`, `layout`, `session`, `connect`, `device`, `doctor`.  The
docstring of each says what it is for and what it may import; tests/test_layers.py enforces it.
"""

from npurt import moved

moved.modules({
    "npurt.hexagon.control": "npurt.hexagon.fastrpc.control",
    "npurt.hexagon.lib": "npurt.hexagon.fastrpc.lib",
})  # fmt: skip
