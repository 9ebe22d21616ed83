"""What lower layers call of higher ones: `npurt/__init__.py` sets it, so imports point down."""

from collections.abc import Callable
from typing import Any

product: Callable[..., Any]  # `npurt.matmul`, which is imported when it is first called
