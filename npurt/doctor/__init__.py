"""Why an NPU does not run here: checks in order, each with its evidence and what mends it.

`check` is the frame and knows no NPU; backends have lists of checks (`npurt.hexagon.doctor`).  What
a check sees of the machine goes through a `System`, so that the same checks judge this machine, a
tree of files, or the evidence that somebody else's machine left in a bundle.
"""
