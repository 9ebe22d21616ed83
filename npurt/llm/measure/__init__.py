"""Measure and estimate models: speed, memory, perplexity, and the rounding error of an NPU.

This package may import all packages of `npurt.llm`.  Read `bench` first.
"""
