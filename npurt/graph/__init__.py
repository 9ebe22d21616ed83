"""A device-neutral description of a forward pass: what is computed, not where or how.

`tensor` and `ops` are the vocabulary, `builder` writes a graph, `graph` checks it, `cost` counts
its work, `render` prints it, and `interpreter` runs it in numpy.  The interpreter defines what each
op means; devices are tested against it.  This package imports numpy, `errors`, and nothing else.
"""
