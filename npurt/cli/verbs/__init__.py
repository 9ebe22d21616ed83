"""The verbs of the command, a file each: ``add`` describes its options, and the rest runs it.

`regcmd_run` is a part of `regcmd`, and `remote` of `chat`.  May import the rooms `arguments` and
`output`, and all layers below.  Begin with `embed`.
"""
