"""A device-independent description of a forward pass.

`tensor` and `ops` define tensors and ops, `builder` builds a graph, `graph` checks it, `cost`
counts its work, `render` prints it, and `interpreter` runs it in numpy.  The interpreter is the
specification of each op; tests compare devices with it.
"""
