"""Run a graph: place products on devices, verify results, fall back to the CPU, record the work.

May import the subpackage `report`.
Begin with `executor`, for devices that run graphs, and `plan`, for the host and its NPU.
"""
