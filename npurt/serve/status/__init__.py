"""The server's state: health and metrics.

May import the packages `model`, `http` and `engine`.
"""
