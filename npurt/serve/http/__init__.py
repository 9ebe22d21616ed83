"""The parts of HTTP that know no models: endpoints, errors, limits, keys, streams.

May import nothing else of `npurt.serve`.
Begin with `endpoint`.
"""
