"""Split a product into tasks: tiling, buffer images, expected time, and the proof of a program.

Pure functions; no module here opens a device.
May import `isa`.  Begin with `tiling`, then `proof`.
"""
