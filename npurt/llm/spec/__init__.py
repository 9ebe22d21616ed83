"""Speculative decoding: draft several tokens cheaply, and verify them in one run of the model.

This package may import all lower packages of `npurt.llm`, but neither `decode` nor `measure`.  Read
`drafter`, the interface, first; then `speculator`, which runs one step.
"""
