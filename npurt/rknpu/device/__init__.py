"""The NPU as an npurt device: quantised weights in its memory, products as prepared jobs.

Also says what a product or a model is expected to take (`estimate`).
May import `isa`, `plan` and `driver`.  Begin with `device`, then `multiply` and `product`.
"""
