"""The public functions below models: `matmul`, `pack`, benchmarks of products, the doctor.

May import every other room.
Begin with `matmul`.
"""
