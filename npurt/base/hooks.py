"""Functions of higher layers that lower layers call; `npurt/__init__.py` sets them."""

from collections.abc import Callable
from typing import Any

product: Callable[..., Any]  # `npurt.matmul`, which is imported when it is first called
