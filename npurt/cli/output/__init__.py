"""Tables that verbs print.

May import the layers below.  Begin with `tables`.
"""
