"""Diagnose why an NPU does not run: ordered checks, each with its evidence and a remedy.

`check` runs checks and is independent of the NPU; each backend has a `checklist`.  A check reads
the machine only through a `System`.  So the same checks run on this machine, on a tree of files,
and on the evidence in another user's bundle.
"""
