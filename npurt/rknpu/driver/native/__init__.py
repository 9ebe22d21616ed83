"""The C library of the RK3588 backend: it rounds inputs, runs a job in one call, and scales sums.

May import `npurt.rknpu.driver.uapi_drm`.  Begin with `npurt_rk.h`; `host` and `run` call it.
"""
