"""The NPU as an npurt device: quantised weights in its memory, products as prepared jobs.

`estimate` predicts the time of a product or a model.
May import `isa`, `plan` and `driver`.  Begin with `device`, then `multiply` and `product`.
"""
