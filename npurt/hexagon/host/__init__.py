"""The arithmetic of the DSP's products on the host's CPU, for weights that a lost DSP had.

May import `layout`.  See docs/decisions/039.
"""
