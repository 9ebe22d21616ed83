"""The CPU device: kernels in C behind cffi.  Importing this opens nothing."""
