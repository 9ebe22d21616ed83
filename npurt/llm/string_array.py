"""An array of strings in a GGUF file: where each begins, and its text when somebody asks.

As Python objects short strings take 7 times as much memory as in the file.  Here each takes 8
bytes, as much as its length takes in the file.
"""

import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Self, overload

BLOCK = 4096  # strings that are looked up together


class StringArray(Sequence[str]):
    """Strings as they lie in a file, each after 8 bytes of length.

    Bytes that are not UTF-8 become surrogate escapes.

    Args:
        data: The file; a mapping stays open with this object.
        starts: Where each string begins in *data*, and 8 bytes past the end of the last.
    """

    def __init__(self, data: mmap.mmap | bytes, starts: "array[int]") -> None:
        self._data = data
        self._starts = starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return an array of *texts*."""
        data, starts = bytearray(), array("Q")
        for text in texts:
            data += bytes(8)
            starts.append(len(data))
            data += text.encode("utf-8", "surrogateescape")
        starts.append(len(data) + 8)
        return cls(bytes(data), starts)

    @property
    def nbytes(self) -> int:
        """Bytes of all strings, without their lengths."""
        return self._starts[-1] - self._starts[0] - 8 * len(self)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        text = self._data[self._starts[i] : self._starts[i + 1] - 8]
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data = self._data
        for first in range(0, len(self), BLOCK):
            starts = self._starts[first : first + BLOCK + 1]
            for start, after in pairwise(starts):
                yield data[start : after - 8].decode("utf-8", "surrogateescape")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
