"""Fields of a request by name and type.  A field that is null is as one left out.

The body was checked against its schema (`bodies`) before, so that nothing is checked again here.
"""

from collections.abc import Mapping
from typing import Any

from npurt.serve.http.errors import HttpError, wrong


class Fields:
    """The fields of an object of a request; *where* names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where

    def name(self, field: str) -> str:
        """Return the full name of *field*."""
        return f"{self._where}.{field}" if self._where else field

    def wrong(self, field: str, allowed: str) -> HttpError:
        """Return the error of a *field* whose value is not what is *allowed*."""
        name = self.name(field)
        return wrong(
            f"{name} is {self.values.get(field)!r:.100}", f"{name} must be {allowed}", param=name
        )

    def has(self, field: str) -> bool:
        """Return whether there is a value."""
        return self.values.get(field) is not None

    def text(self, field: str, default: str | None = None) -> str | None:
        """Return a text."""
        found: str | None = self._found(field, default)
        return found

    def required_text(self, field: str) -> str:
        """Return a text that must be there because of another field.

        Raises:
            HttpError: It is not.
        """
        value = self.text(field)
        if value is None:
            raise self.wrong(field, "a string")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """Return true or false."""
        return bool(self._found(field, default))

    def integer(self, field: str, default: int | None = None) -> int | None:
        """Return a whole number; 3.0 is one."""
        value = self._found(field, default)
        return None if value is None else int(value)

    def number(self, field: str) -> float | None:
        """Return a number.

        Raises:
            HttpError: It is too large.
        """
        value = self._found(field, None)
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise self.wrong(field, "a number that is not so large") from None

    def items(self, field: str) -> list[Any]:
        """Return a list; [] if there is none."""
        found: list[Any] = self._found(field, [])
        return found

    def inner(self, field: str) -> "Fields":
        """Return the fields of an object; of an empty one if there is none."""
        return Fields(self._found(field, {}), self.name(field))

    def objects(self, field: str) -> list["Fields"]:
        """Return a list of objects; [] if there is none."""
        found = enumerate(self.items(field))
        return [Fields(each, f"{self.name(field)}[{i}]") for i, each in found]

    def _found(self, field: str, default: Any) -> Any:
        value = self.values.get(field)
        return default if value is None else value
