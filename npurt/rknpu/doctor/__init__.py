"""Find out why an RK3588 NPU does not run: checks of the machine, and trial products on the NPU.

`npurt doctor` and `npurt probe` print the results.
May import every other subpackage and `npurt.doctor`.  Begin with `checks`, then `probe`.
"""
