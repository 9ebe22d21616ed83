"""Measure and estimate models: speed, perplexity, and the error that an NPU's rounding causes.

May import every other room.
Begin with `bench`.
"""
