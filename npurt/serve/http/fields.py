"""Read fields of a request by name and type.  A null field counts as missing.

The values are not checked here: `schema.check` has checked the body against its schema (`bodies`).
"""

from collections.abc import Mapping
from typing import Any

from npurt.errors import brief
from npurt.serve.http.errors import HttpError, wrong


class Fields:
    """The fields of an object in a request; *where* is the object's name in error messages."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self._where = where

    def name(self, field: str) -> str:
        """Return the full name of *field*."""
        return f"{self._where}.{field}" if self._where else field

    def wrong(self, field: str, allowed: str) -> HttpError:
        """Return the error of a *field* whose value is not *allowed*."""
        name = self.name(field)
        return wrong(
            f"{name} is {brief(self.values.get(field), 100)}",
            f"{name} must be {allowed}",
            param=name,
        )

    def has(self, field: str) -> bool:
        """Return whether *field* has a value that is not null."""
        return self.values.get(field) is not None

    def text(self, field: str, default: str | None = None) -> str | None:
        """Return the string in *field*."""
        found: str | None = self._found(field, default)
        return found

    def required_text(self, field: str) -> str:
        """Return the string in *field*, which another field's value makes mandatory.

        Raises:
            HttpError: The field is missing.
        """
        value = self.text(field)
        if value is None:
            raise self.wrong(field, "a string")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """Return the boolean in *field*."""
        return bool(self._found(field, default))

    def integer(self, field: str, default: int | None = None) -> int | None:
        """Return the integer in *field*; the value 3.0 becomes 3."""
        value = self._found(field, default)
        return None if value is None else int(value)

    def number(self, field: str) -> float | None:
        """Return the number in *field* as a float.

        Raises:
            HttpError: The number is too large for a float.
        """
        value = self._found(field, None)
        try:
            return None if value is None else float(value)
        except OverflowError:
            raise self.wrong(field, "a number that is not so large") from None

    def items(self, field: str) -> list[Any]:
        """Return the list in *field*; [] if the field is missing."""
        found: list[Any] = self._found(field, [])
        return found

    def inner(self, field: str) -> "Fields":
        """Return the fields of the object in *field*; no fields if the object is missing."""
        return Fields(self._found(field, {}), self.name(field))

    def objects(self, field: str) -> list["Fields"]:
        """Return the list of objects in *field*; [] if the field is missing."""
        found = enumerate(self.items(field))
        return [Fields(each, f"{self.name(field)}[{i}]") for i, each in found]

    def _found(self, field: str, default: Any) -> Any:
        value = self.values.get(field)
        return default if value is None else value
