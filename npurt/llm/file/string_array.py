"""An array of strings in the encoding of the GGUF file.

A list of Python strings would take 7 times as much memory.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Self, overload

EVERY = 16  # the position of every 16th string is stored; a search for others begins there

LENGTH = struct.Struct("<Q")  # the length of a string, before its bytes


class StringArray(Sequence[str]):
    """A sequence of strings.  Bytes that are not UTF-8 become surrogate escapes.

    Args:
        data: The concatenated strings, each after its length.
        starts: The position in *data* of each string whose index is a multiple of `EVERY`.
        count: The number of strings.
        longest: The length in bytes of the longest string.
    """

    def __init__(
        self, data: bytes | bytearray, starts: "array[int]", count: int, longest: int
    ) -> None:
        self._data = data
        self._starts = starts
        self._count = count
        self.longest = longest

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return an array of *texts*."""
        data, starts, count, longest = bytearray(), array("Q"), 0, 0
        for count, text in enumerate(texts, 1):
            if count % EVERY == 1:
                starts.append(len(data))
            encoded = text.encode("utf-8", "surrogateescape")
            data += LENGTH.pack(len(encoded)) + encoded
            longest = max(longest, len(encoded))
        return cls(data, starts, count, longest)

    @property
    def nbytes(self) -> int:
        """The number of bytes of all strings, without their length fields."""
        return len(self._data) - LENGTH.size * self._count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        group, skipped = divmod(range(self._count)[index], EVERY)
        data, at = self._data, self._starts[group]
        for _ in range(skipped + 1):
            begin = at + LENGTH.size
            at = begin + LENGTH.unpack_from(data, at)[0]
        return data[begin:at].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, at, unpack, size = self._data, 0, LENGTH.unpack_from, LENGTH.size
        texts = (
            data[at + size : (at := at + size + unpack(data, at)[0])] for _ in range(len(self))
        )
        return map(str, texts, repeat("utf-8"), repeat("surrogateescape"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
