"""Read values from GGUF metadata, and raise an error if a value has the wrong type.

A value is a bool, int, float or str, a memoryview of numbers or flags, or a `StringArray`.
numpy.asarray(view) converts a memoryview to an array without a copy.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from npurt.errors import ModelFormatError
from npurt.llm.file.string_array import StringArray

T = TypeVar("T")
D = TypeVar("D")

Metadata = Mapping[str, Any]

# Format letters of memoryview arrays.
INTEGERS = "bBhHiIqQ"
FLOATS = "fd"
FLAGS = "?"

CONVERT_AGAIN = "convert the model to GGUF again with a current converter, or get another file"


def require(metadata: Metadata, key: str, kind: type[T]) -> T:
    """Return the scalar or string *key*; *kind* is bool, int, float or str.

    A bool is not accepted as an int; an int is converted to float.

    Raises:
        ModelFormatError: The key is missing or of another type.
    """
    value = _find(metadata, key)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise _wrong(key, value, kind.__name__)
    return value


def optional(metadata: Metadata, key: str, kind: type[T], default: D) -> T | D:
    """Return *key* as `require` does, or *default* if it is missing."""
    return require(metadata, key, kind) if key in metadata else default


def strings(metadata: Metadata, key: str) -> StringArray:
    """Return the array of strings *key*; a list is converted.  Errors as `require`."""
    value = _find(metadata, key)
    if type(value) is list and set(map(type, value)) <= {str}:
        return StringArray.of(value)
    if type(value) is not StringArray:
        raise _wrong(key, value, "array of strings")
    return value


def numbers(metadata: Metadata, key: str, letters: str) -> "memoryview[Any]":
    """Return the array *key*, whose format must be one of *letters*, such as `INTEGERS`.

    Errors as `require`.
    """
    value = _find(metadata, key)
    if not isinstance(value, memoryview) or value.format not in letters:
        raise _wrong(key, value, "array of numbers")
    return value


def _find(metadata: Metadata, key: str) -> Any:
    if key not in metadata:
        raise ModelFormatError(f"the metadata has no {key!r}", remedy=CONVERT_AGAIN)
    return metadata[key]


def _wrong(key: str, value: object, expected: str) -> ModelFormatError:
    shown = repr(value) if isinstance(value, bool | int | float | str) else type(value).__name__
    return ModelFormatError(f"{key!r} is {shown:.60}, not {expected}", remedy=CONVERT_AGAIN)
