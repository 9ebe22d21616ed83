"""Public functions that need no model: `matmul`, `pack`, benchmarks of products, the doctor.

May import every other subpackage.
Begin with `matmul`.
"""
