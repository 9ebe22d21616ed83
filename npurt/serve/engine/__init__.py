"""Engines: processes that compute tokens for the front.  What is here knows no HTTP.

May import nothing else of `npurt.serve`.
Begin with `protocol`; `client` is the front's side, `worker` the side of the process.
"""
