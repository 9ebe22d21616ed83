"""What of HTTP has nothing to do with models: endpoints, errors, limits, keys, streams.

May import nothing else of `npurt.serve`.
Begin with `endpoint`.
"""
