"""An array of strings of a GGUF file, stored as one text and the end of each string.

Python objects of short strings take 7 times as much memory as the file.  Here a string takes 8
bytes besides its text, as much as its length takes in the file.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, overload

import numpy as np


class StringArray(Sequence[str]):
    """A sequence of strings.  Bytes that are not UTF-8 become surrogate escapes.

    Args:
        texts: The bytes of all strings, one after another.
        ends: 0, then the end of each string in *texts*.
    """

    def __init__(self, texts: bytes | bytearray, ends: "array[int]") -> None:
        self._texts = texts
        self._ends = ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Return an array of *texts*."""
        data, ends = bytearray(), array("Q", [0])
        for text in texts:
            data += text.encode("utf-8", "surrogateescape")
            ends.append(len(data))
        return cls(data, ends)

    @property
    def nbytes(self) -> int:
        """Bytes of all strings."""
        return self._ends[-1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        text = self._texts[self._ends[i] : self._ends[i + 1]]
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        try:
            whole = self._texts.decode()
        except UnicodeDecodeError:
            return map(self.__getitem__, range(len(self)))
        begins = np.frombuffer(self._texts, np.uint8) & 0xC0 != 0x80  # a character, not within one
        ends = np.frombuffer(self._ends, np.uint64)
        if not begins[ends[ends < len(begins)]].all():  # a string ends within a character
            return map(self.__getitem__, range(len(self)))
        characters = np.concatenate([[0], np.cumsum(begins)])[ends].tolist()
        return map(whole.__getitem__, map(slice, characters, characters[1:]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
