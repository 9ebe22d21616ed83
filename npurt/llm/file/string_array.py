"""An array of strings of a GGUF file, stored as one text and the end of each string.

Python objects of short strings take 7 times as much memory as the file.  Here a string takes 8
bytes besides its text, as much as its length takes in the file.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Self, overload

import numpy as np

CHUNK = 4096  # strings that are decoded at once
LONG = 1 << 20  # bytes: as many are not


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
        parts = (self._part(first) for first in range(0, len(self), CHUNK))
        return chain.from_iterable(parts)

    def _part(self, first: int) -> Iterator[str]:
        """Return the next strings from number *first* on, decoded at once where that is the same.

        It is not where bytes are not UTF-8, and where a string ends within a character.
        """
        one_by_one = map(self.__getitem__, range(first, min(first + CHUNK, len(self))))
        ends = np.frombuffer(self._ends, np.uint64)[first : first + CHUNK + 1].astype(np.intp)
        data, at = self._texts[ends[0] : ends[-1]], ends - ends[0]
        if len(data) > LONG:
            return one_by_one
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return one_by_one
        begins = np.frombuffer(data, np.uint8) & 0xC0 != 0x80  # a character, not within one
        if not begins[at[at < len(begins)]].all():
            return one_by_one
        # A call of np.cumsum leaves a small block of Python's memory, and with it a whole arena.
        counts = np.add.accumulate(begins, dtype=np.intp)
        characters = np.concatenate([[0], counts])[at].tolist()
        return map(text.__getitem__, map(slice, characters, characters[1:]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} strings>"
