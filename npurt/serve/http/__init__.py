"""The HTTP code that is independent of models: endpoints, errors, limits, API keys, streams.

May import nothing else of `npurt.serve`.
Begin with `endpoint`.
"""
