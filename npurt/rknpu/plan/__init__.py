"""Split a product into tasks: tiling, buffer images, expected time, and the proof of a program.

Pure functions; no module here opens a device.
May import `isa`.  Begin with `tiling`, then `proof`.
"""

from npurt import moved

__getattr__ = moved.attributes(
    __name__, dict.fromkeys(("plan", "plan_weights"), "npurt.rknpu.plan.tiling")
)
