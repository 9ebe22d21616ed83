"""The contract of a backend: its row in npurt's table of devices, and what its functions return.

May import `npurt.device`, `npurt.doctor` and lower packages.  Begin with `row`; the table is
`npurt.runtime.open.registry`.
"""
