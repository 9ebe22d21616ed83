"""Open a session, in this process or in a worker process, and store measurements of a DSP.

May import `idl`, `fastrpc`, `layout`, `plan` and `session`.
Begin with `connection`.
"""
