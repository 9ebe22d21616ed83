"""Output of the verbs: tables, markdown, and terminal styles.

May import the layers below.  Begin with `tables`.
"""
