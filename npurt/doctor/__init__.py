"""Why an NPU does not run here: checks in order, each with its evidence and what mends it.

`check` is the frame and knows no NPU; each backend has a list of checks, as in
`npurt.hexagon.doctor.checks`.  A check sees the machine through a `System` alone, so that the same
checks judge this machine, a tree of files, or the evidence in somebody else's bundle.
"""
