"""The RK3588 NPU: our own register programs, run by the kernel driver rocket or rknpu.

The subpackages, lowest first: `isa`, `plan`, `driver`, `device`, `doctor`.  Each may import the
subpackages before it.
"""

from npurt import moved

moved.modules({
    "npurt.rknpu.detect": "npurt.rknpu.driver.detect",
    "npurt.rknpu.forms": "npurt.rknpu.isa.formats",
    "npurt.rknpu.images": "npurt.rknpu.plan.images",
    "npurt.rknpu.proof": "npurt.rknpu.plan.proof",
    "npurt.rknpu.system": "npurt.rknpu.driver.system",
})  # fmt: skip
