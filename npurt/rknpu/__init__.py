"""The RK3588 NPU: our own register programs, run by the kernel driver rocket or rknpu.

The subpackages, lowest first: `isa`, `plan`, `driver`, `device`, `doctor`.  Each may import the
subpackages before it.
"""
