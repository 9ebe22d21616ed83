"""The verbs of the command, one module each: ``add`` adds its options, ``run`` executes it.

`regcmd_run` is a part of `regcmd`, and `remote` a part of `chat`.  May import the packages
`arguments` and `output`, and all layers below.  Begin with `embed`.
"""
