"""What the NPU understands: number formats, memory layouts, registers, tasks as command words.

Pure functions of integers and numpy arrays; nothing here opens a device.
May import `npurt.errors` and `npurt.files` alone.  Begin with `task`, then `lower` and `regcmd`.
"""
