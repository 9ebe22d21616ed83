"""Command-line arguments: the parser, and the options that several verbs share.

May import the layers below.  Begin with `options`.
"""
