"""What users call below a model: `npurt.matmul`, `npurt.pack`, benchmarks of products, the doctor.

May import every other room.
Begin with `matmul`.
"""
