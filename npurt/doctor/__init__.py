"""Diagnose why an NPU does not run: ordered checks, each with its evidence and a remedy.

`check` is the frame and knows no NPU; each backend has a list of checks, as in
`npurt.hexagon.doctor.checks`.  A check sees the machine through a `System` alone, so that the same
checks judge this machine, a tree of files, or the evidence in somebody else's bundle.
"""
