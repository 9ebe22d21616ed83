"""What products cost a DSP before any is run: packets, bytes, and a model's estimate of the time.

May import the rooms `idl`, `fastrpc` and `layout`; pure integers and floats, no device.
Begin with `packets`.
"""
