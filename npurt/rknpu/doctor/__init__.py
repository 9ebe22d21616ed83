"""Why an RK3588 NPU does not run: checks of the machine, and trial products on the NPU.

`npurt doctor` and `npurt probe` print what this room finds.
May import every other room and `npurt.doctor`.  Begin with `checks`, then `probe`.
"""
