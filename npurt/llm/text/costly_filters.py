"""Filters of jinja2 whose work or result is larger than their arguments, each with its cost.

The sandbox charges the cost before it calls the filter.
"""

from collections.abc import Callable, Iterable
from pprint import pformat
from typing import Any

from jinja2 import filters
from jinja2.exceptions import SecurityError
from markupsafe import escape

Cost = Callable[..., int]  # of the weight of all arguments, and the arguments
Costly = tuple[Cost, Callable[..., Any]]
MAX_COUNT = 1 << 16  # of lists, spaces or digits that an argument asks for
MAX_PRINTED = 1 << 16  # weight of a value that pprint or urlize reads
UNIT = 16  # units of a created object


def _times(factor: int) -> Cost:
    return lambda weight, *_, **__: factor * weight


def _count(value: Any) -> int:
    """Return the number *value*.

    Raises:
        SecurityError: It is too large.
    """
    if isinstance(value, int | float) and not -MAX_COUNT <= value <= MAX_COUNT:
        raise SecurityError(f"a count of more than {MAX_COUNT}")
    return abs(int(value)) if isinstance(value, int | float) else 0


def _cost_of_count(weight: int, value: Any, count: Any = 80, *_: Any, **given: Any) -> int:
    counts = [count, *given.values()]
    return weight + UNIT * max(map(_count, counts))


def _cost_of_lists(weight: int, value: Any, *args: Any, **given: Any) -> int:
    size = len(value) if hasattr(value, "__len__") else 0
    return weight + UNIT * (size + max(map(_count, (*args, *given.values())), default=0))


def _cost_of_print(weight: int, *_: Any, **__: Any) -> int:
    if weight > MAX_PRINTED:
        raise SecurityError("a value that is too large to print")
    return UNIT * weight


def _cost_of_tags(weight: int, value: Any) -> int:
    return weight * (1 + str(value).count("<"))


def _cost_of_wrap(
    weight: int, environment: Any, value: Any, width: Any = 79, long: Any = True,
    wrapstring: Any = None, *_: Any,
    **__: Any,
) -> int:  # fmt: skip
    return UNIT * weight + len(str(value)) * (1 + len(str(wrapstring or "")))


def _batch(value: Any, linecount: int, fill_with: Any = None) -> list[Any]:
    return list(filters.do_batch(value, linecount, fill_with))


def _slice(value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    return list(filters.sync_do_slice(value, slices, fill_with))


def _center(value: Any, width: int = 80) -> str:
    return str(value).center(width)


def _escape(value: Any) -> str:
    return str(escape(str(value)))


def _sum(value: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Return the sum of numbers; other values would take quadratic time.

    Raises:
        SecurityError: A value is no number.
    """
    items = list(value)
    if attribute is not None:
        items = [item[attribute] if isinstance(item, dict) else None for item in items]
    if not all(isinstance(item, int | float) for item in (*items, start)):
        raise SecurityError("a sum of values that are no numbers")
    return sum(items, start)


FILTERS: dict[str, Costly] = {
    "batch": (_cost_of_lists, _batch),
    "center": (_cost_of_count, _center),
    "e": (_times(6), _escape),
    "escape": (_times(6), _escape),
    "filesizeformat": (_times(1), filters.do_filesizeformat),
    "forceescape": (_times(6), _escape),
    "pprint": (_cost_of_print, pformat),
    "round": (_cost_of_count, filters.do_round),
    "slice": (_cost_of_lists, _slice),
    "striptags": (_cost_of_tags, lambda value: filters.do_striptags(str(value))),
    "sum": (_times(UNIT), _sum),
    "truncate": (_times(1), filters.do_truncate),
    "urlencode": (_times(12), filters.do_urlencode),
    "urlize": (_cost_of_print, filters.do_urlize),
    "wordcount": (_times(UNIT), filters.do_wordcount),
    "wordwrap": (_cost_of_wrap, filters.do_wordwrap),
    "xmlattr": (_times(6), filters.do_xmlattr),
}
