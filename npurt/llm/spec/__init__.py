"""Speculative decoding: draft some tokens cheaply, verify them all in one pass of the model.

May import every room below it, but neither `decode` nor `measure`.
Begin with `drafter`, the interface, and `speculator`, one step.
"""
