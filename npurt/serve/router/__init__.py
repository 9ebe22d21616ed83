"""Several models in one server: find the models of a folder, load and unload them on demand.

May import the packages `front`, `http` and `engine`.
Begin with `router`.
"""
