"""Architectures of models: the graph of a forward pass, its weights, and how it runs.

`families` has a file for each family of models.  `reading` makes the graph of a file: `forward` is
that of decoders, `encoder` that of encoders, both out of `blocks`.  `weights` loads the matrices,
`decoder` runs the graph.  May import the rooms `file` and `state`.  Begin with `architecture`.
"""

from npurt import moved

__getattr__ = moved.attributes(
    __name__,
    dict.fromkeys(("ARCHITECTURES", "find"), "npurt.llm.arch.families"),
)
