"""Open a session as the settings say, in this process or a worker, and remember measurements.

May import the rooms `idl`, `fastrpc`, `layout` and `session`.
Begin with `connection`.
"""
