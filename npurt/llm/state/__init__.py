"""The state of a sequence: KV cache, recurrent states, snapshots, saved states.

May import the subpackage `file`.  Begin with `state`.
"""
