"""The NPU's interface: number formats, memory layouts, registers, tasks as command words.

Pure functions of integers and numpy arrays; no module here opens a device.
May import only `npurt.errors` and `npurt.base.files`.  Begin with `task`, then `lower`.
"""
