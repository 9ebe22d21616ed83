"""Fields of a request, with their types checked.  A field that is null is as one left out."""

from collections.abc import Mapping
from typing import Any

from npurt.serve.http.errors import HttpError, wrong

LARGEST = (1 << 63) - 1


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

    def any(self, *names: str) -> Any:
        """Return the value of the first of *names* that has one, or None."""
        found = (self.values[name] for name in names if self.values.get(name) is not None)
        return next(found, None)

    def text(self, field: str, default: str | None = None) -> str | None:
        """Return a text."""
        found: str | None = self._typed(field, str, "a string", default)
        return found

    def required_text(self, field: str) -> str:
        """Return a text that must be there."""
        value = self.text(field)
        if value is None:
            raise self.wrong(field, "a string")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """Return true or false."""
        return bool(self._typed(field, bool, "true or false", default))

    def integer(
        self, field: str, least: int = -LARGEST, most: int = LARGEST, default: int | None = None
    ) -> int | None:
        """Return a whole number; 3.0 is one."""
        value = self.values.get(field)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(field, f"a whole number of {least} to {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float | None:
        """Return a number."""
        value = self.values.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(field, "a number that is not so large") from None

    def items(self, field: str, most: int) -> list[Any]:
        """Return a list; [] if there is none."""
        found: list[Any] = self._typed(field, list, "a list", [])
        if len(found) > most:
            raise wrong(
                f"{self.name(field)} has {len(found)} elements", f"send {most} or fewer",
                param=self.name(field),
            )  # fmt: skip
        return found

    def inner(self, field: str) -> "Fields":
        """Return the fields of an object; of an empty one if there is none."""
        return Fields(self._typed(field, dict, "an object", {}), self.name(field))

    def objects(self, field: str, most: int) -> list["Fields"]:
        """Return a list of objects; [] if there is none."""
        found = self.items(field, most)
        if not all(isinstance(each, dict) for each in found):
            raise self.wrong(field, "a list of objects")
        return [Fields(each, f"{self.name(field)}[{i}]") for i, each in enumerate(found)]

    def _typed(self, field: str, kind: type, allowed: str, default: Any) -> Any:
        value = self.values.get(field)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(field, allowed)
        return value
