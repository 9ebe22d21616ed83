"""Samplers: pure functions that change the logits of candidate tokens or remove candidates.

Each file has one sampler.  A sampler takes `Candidates` and the `Text` before them, and returns
`Candidates`.  Modules may import each other and lower layers, but no other package of the same
layer.  Read `candidates` first, then `chain`, which has the order of the samplers.
"""
