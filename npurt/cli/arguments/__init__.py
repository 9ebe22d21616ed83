"""What is written after a verb: the parser, and options that several verbs have.

May import the layers below.  Begin with `options`.
"""
