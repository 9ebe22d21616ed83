"""Function calls in completions: one module for each format of calls.

Imports `decode.grammar` and `decode.stops` only.
Begin with `reading`, which parses a completion as a stream; `loose` has forms of calls besides the
model's own format, and `growing` parses the arguments of a call that is not complete.
"""
