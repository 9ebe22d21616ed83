"""What the server says of itself: health and metrics.

May import the rooms `model`, `http` and `engine`.
"""
