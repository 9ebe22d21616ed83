"""Engines: processes that compute tokens for the front.  This package contains no HTTP code.

May import nothing else of `npurt.serve`.
Begin with `protocol`; `client` runs in the front, `worker` in the engine's process.
"""
