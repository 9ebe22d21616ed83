"""Model architectures: build the graph of the forward pass, load its weights, and run it.

`families` has a module for each model family.  `reading` builds the graph of a GGUF file: `forward`
builds decoders and `encoder` builds encoders, both from the layers in `blocks`.  `weights` loads
the matrices; `decoder` runs the graph.  May import the subpackages `file` and `state`.  Begin with
`architecture`.
"""
