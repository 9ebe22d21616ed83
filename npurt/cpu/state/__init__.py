"""What sequences keep from run to run: pages of keys and values, delta nets, short convolutions.

May import `kernels` and `pool`.  Begin with `states`.
"""
