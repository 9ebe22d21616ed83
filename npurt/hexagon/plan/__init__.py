"""Estimate what products cost on a DSP without running them: packets, bytes and time.

May import `idl`, `fastrpc` and `layout`.  The code needs no device.
Begin with `packets`.
"""
