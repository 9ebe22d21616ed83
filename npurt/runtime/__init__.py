"""Run products and graphs on devices, check the results, and keep a record of what ran where.

The rooms, lowest first: `report` and `open`, `execute`, `api`.
The docstring of each says what it is for and what it may import; tests/test_layers.py enforces it.
"""

from npurt import moved

moved.modules({
    "npurt.runtime.devices": "npurt.runtime.open.devices",
    "npurt.runtime.ledger": "npurt.runtime.report.ledger",
    "npurt.runtime.matmul": "npurt.runtime.api.matmul",
})  # fmt: skip
