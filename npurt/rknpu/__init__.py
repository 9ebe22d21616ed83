"""The RK3588 NPU: our own register programs, through the rocket or the rknpu driver.

The rooms, lowest first; each may import those before it: `isa`, `plan`, `driver`, `device`,
`doctor`.
"""

from npurt import moved

moved.modules({
    "npurt.rknpu.detect": "npurt.rknpu.driver.detect",
    "npurt.rknpu.forms": "npurt.rknpu.isa.formats",
    "npurt.rknpu.images": "npurt.rknpu.plan.images",
    "npurt.rknpu.proof": "npurt.rknpu.plan.proof",
    "npurt.rknpu.system": "npurt.rknpu.driver.system",
})  # fmt: skip
