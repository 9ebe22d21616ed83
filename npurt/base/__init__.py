"""Code that knows nothing of products and models: files, libraries of C, objects made once.

May import `npurt.errors` and `npurt.settings`.  Begin with `files`.
"""
