"""The server's state: health and metrics.

May import the packages `front`, `http` and `engine`.
"""
