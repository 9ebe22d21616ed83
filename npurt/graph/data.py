"""`Data`: a base class of frozen dataclasses that import quickly."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(frozen_default=True)
class Data:
    """The base of frozen dataclasses that share the methods of this class.

    `dataclass` would compile six methods for each class, which takes 0.3 ms on Python 3.11 for each
    of 26 ops.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()  # names of the fields, set by `dataclass`

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.__match_args__
        given = dict(zip(fields, values, strict=False)) | named
        missing = [name for name in fields if name not in given and not hasattr(type(self), name)]
        if missing or len(given) < len(values) + len(named) or not given.keys() <= {*fields}:
            raise TypeError(
                f"{type(self).__name__} takes {fields}: missing {missing}, given {given}"
            )
        vars(self).update(given)

    def _values(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__match_args__]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Data):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values()))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")
