"""Sequence states: pages of keys and values, states of delta nets and of short convolutions.

May import `kernels` and `pool`.  Begin with `states`.
"""
