"""The state of a sequence: KV cache, recurrent states, snapshots, saved states.

May import the subpackage `file`.  Begin with `state`.
"""

from npurt import moved

__getattr__ = moved.attributes(
    __name__, dict.fromkeys(("Snapshot", "State"), "npurt.llm.state.state")
)
