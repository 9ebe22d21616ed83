"""The types of an interface: their bytes on the wire, and their Python values.

A call has a block of bytes that is sent to the DSP, a block that comes back, and further buffers.
A value of fixed size lies in a block, in the layout of C.  For a sequence or string, the sent block
holds a number of elements and a separate buffer holds the data; for results, the number is the
capacity of the buffer.  If the elements of a sequence have no fixed size, one more buffer holds the
blocks of all elements, one after the other.

Everything is little-endian.  Source: the layout that qualcomm/QAIC computes in
src/Language/Slim/Alignment.hs and Serialize.hs, checked with calls captured from its stubs.
"""

import abc
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from npurt.errors import LayoutError

Buffers = list[memoryview]
Cells = list[Any]  # the values of a block in order, for `struct` to pack


class BlockPart(NamedTuple):
    """A part of a block; *format* is its format for `struct`, with padding."""

    format: str
    size: int
    align: int


NOTHING = BlockPart("", 0, 1)
COUNT = BlockPart("I", 4, 4)


def place(parts: Iterable[BlockPart]) -> tuple[list[int], BlockPart]:
    """Lay out *parts* one after the other, each aligned; return their offsets and the whole part.

    The size of the whole is not rounded up; `padded` does this.
    """
    offsets = []
    text, end, align = "", 0, 1
    for part in parts:
        gap = -end % part.align
        offsets.append(end + gap)
        text += f"{gap}x{part.format}" if gap else part.format
        end += gap + part.size
        align = max(align, part.align)
    return offsets, BlockPart(text, end, align)


def padded(part: BlockPart) -> BlockPart:
    """Return *part* with padding, so that its size is a multiple of its alignment."""
    gap = -part.size % part.align
    return BlockPart(f"{part.format}{gap}x" if gap else part.format, part.size + gap, part.align)


def wrong(where: str, value: object, needed: str) -> LayoutError:
    """Return the error for a value that is not *needed*."""
    text = repr(value)
    return LayoutError(
        f"{where}: {text if len(text) < 60 else text[:56] + ' ...'} is not {needed}",
        remedy=f"pass {needed}",
    )


class Type(abc.ABC):
    """A type of an interface."""

    c: str = ""  # the C type of a value; "" if it has no name
    given: BlockPart  # part of an `in` value in the block that is sent to the DSP
    capacity: (
        BlockPart  # part of a `rout` parameter in the same block: the capacities of its buffers
    )
    answer: BlockPart  # part of a `rout` value in the block that comes back
    depth: int = 1  # nesting of types
    nesting: int = 0  # nesting of buffers: 1 for a sequence of numbers, 2 for sequences of those

    @property
    def fixed(self) -> bool:
        """Whether all values have the same size and need no buffer."""
        return self.capacity is NOTHING

    @abc.abstractmethod
    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the cells of *value*, and append its buffers to *inputs*.

        Raises:
            LayoutError: *value* is not of this type; the message begins with *where*.
        """

    def reserve(self, capacity: Any, where: str, inputs: Buffers, outputs: Buffers) -> Cells:
        """Return the cells with the capacities of buffers; append the buffers to the lists."""
        return []

    @abc.abstractmethod
    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return the value from the block and the buffers that came back.

        Args:
            capacity: The argument *capacity* of `reserve`.
            cells: The values of the block, from the value of this type on.
            outputs: The buffers, from the first buffer of this type on.
        """


class Scalar(Type):
    """A number; *code* is its letter in formats of `struct` and memoryview."""

    def __init__(self, c: str, code: str) -> None:
        size = struct.calcsize(f"<{code}")
        self.c = c
        self.given = self.answer = BlockPart(code, size, size)
        self.capacity = NOTHING

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the number as a cell; `struct` checks its range later."""
        return [value]

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return the number."""
        return next(cells)


class Enum(Scalar):
    """Names for 0, 1, 2, ...; an argument is the number or the name, a result is the number."""

    def __init__(self, c: str, members: tuple[str, ...]) -> None:
        super().__init__(c, "I")
        self.members = members

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the number as a cell."""
        if value in self.members:
            return [self.members.index(value)]
        if value not in range(len(self.members)):
            raise wrong(where, value, f"one of {', '.join(self.members)}")
        return [value]


class Array(Type):
    """A fixed number of elements of a fixed type, as a member of a struct.

    An argument is a sequence or bytes.
    """

    def __init__(self, element: Type, length: int) -> None:
        part = element.given
        self.element = element
        self.length = length
        self.given = self.answer = BlockPart(
            repeated(element, length), part.size * length, part.align
        )
        self.capacity = NOTHING
        self.depth = element.depth + 1

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the cells of every element."""
        try:
            values = list(value)
        except TypeError:
            values = []
        if len(values) != self.length:
            raise wrong(where, value, f"a sequence of {self.length}")
        cells = []
        for i, element in enumerate(values):
            cells += self.element.give(element, f"{where}[{i}]", inputs)
        return cells

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return a list."""
        return [self.element.take(None, cells, outputs) for _ in range(self.length)]


class Struct(Type):
    """Named members; an argument is a mapping with all members, a result is a dict."""

    def __init__(self, c: str, members: Mapping[str, Type]) -> None:
        types = list(members.values())
        self.c = c
        self.members = dict(members)
        self.given = padded(place(t.given for t in types)[1])
        self.answer = padded(place(t.answer for t in types)[1])
        capacity = padded(place(t.capacity for t in types)[1])
        self.capacity = capacity if capacity.size else NOTHING
        self.depth = max(t.depth for t in types) + 1
        self.nesting = max(t.nesting for t in types)

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the cells of every member."""
        if not isinstance(value, Mapping) or value.keys() != self.members.keys():
            raise wrong(where, value, f"a mapping with {', '.join(self.members)}")
        cells = []
        for name, member in self.members.items():
            cells += member.give(value[name], f"{where}.{name}", inputs)
        return cells

    def reserve(self, capacity: Any, where: str, inputs: Buffers, outputs: Buffers) -> Cells:
        """Return the cells; *capacity* maps the names of members of variable size to theirs."""
        need = {name: member for name, member in self.members.items() if not member.fixed}
        if need and (not isinstance(capacity, Mapping) or capacity.keys() != need.keys()):
            raise wrong(where, capacity, f"a mapping with the room for {', '.join(need)}")
        cells = []
        for name, member in need.items():
            cells += member.reserve(capacity[name], f"{where}.{name}", inputs, outputs)
        return cells

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return a dict."""
        capacities = capacity or {}
        return {
            name: member.take(capacities.get(name), cells, outputs)
            for name, member in self.members.items()
        }


class SequenceType(Type):
    """Any number of elements of one type.

    An ``in`` argument is an iterable, or a buffer of the data, which is not copied.  For ``rout``,
    the capacity is a number of elements, or a writable buffer, which is not copied.  A result is a
    memoryview of numbers, not copied, or a list of structs.  If the elements have no fixed size,
    the value and the capacity are sequences of the elements' values and capacities.
    """

    def __init__(self, c: str, element: Type) -> None:
        self.c = c  # name of a struct with data and length
        self.element = element
        self.given = self.capacity = COUNT
        self.answer = NOTHING
        self.depth = element.depth + 1
        self.nesting = element.nesting + 1

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the number of elements as a cell, and append the buffers to *inputs*."""
        if not self.element.fixed:
            return self._each(
                value, where, inputs, lambda v, at: self.element.give(v, at, inputs),
                self.element.given,
            )  # fmt: skip
        data = self._view(value, where)
        if data is None:
            data = memoryview(self._packed(value, where))
        inputs.append(data)
        return [data.nbytes // self.element.given.size]

    def _each(
        self,
        values: Any,
        where: str,
        inputs: Buffers,
        cells: Callable[[Any, str], Cells],
        part: BlockPart,
    ) -> Cells:
        """Append a buffer with the blocks of all elements; *cells* appends those of each element.

        Args:
            values: The elements.
            where: The place of the sequence, for errors.
            inputs: The list of buffers.
            cells: Returns the cells of an element and appends its buffers.
            part: The part of an element in the block.
        """
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
            raise wrong(where, values, "a list with an entry for each element")
        packer = struct.Struct(f"<{part.format}")
        blocks = bytearray(part.size * len(values))
        inputs.append(memoryview(blocks))
        for i, value in enumerate(values):
            at = f"{where}[{i}]"
            pack_into(packer, blocks, i * part.size, cells(value, at), at)
        return [len(values)]

    def _packed(self, values: Any, where: str) -> bytearray:
        """Return the elements as bytes."""
        try:
            elements = list(values)
        except TypeError:
            raise wrong(where, values, "a sequence or a buffer") from None
        cells = []
        for i, value in enumerate(elements):
            cells += self.element.give(value, f"{where}[{i}]", [])
        part = self.element.given
        packer = struct.Struct("<" + repeated(self.element, len(elements)))
        data = bytearray(part.size * len(elements))
        pack_into(packer, data, 0, cells, where)
        return data

    def _view(self, value: Any, where: str, *, writable: bool = False) -> memoryview | None:
        """Return the bytes of a buffer of elements, or None if *value* is not a buffer.

        A buffer of bytes may hold elements of any type.  A buffer of another type is refused.
        """
        try:
            view = memoryview(value)
        except TypeError:
            return None
        part = self.element.given
        if not view.c_contiguous or view.nbytes % part.size or (writable and view.readonly):
            need = "writable, " if writable else ""
            raise wrong(where, value, f"{need}contiguous and whole elements of {part.size} bytes")
        if not _holds(view, self.element):
            raise wrong(where, value, f"a buffer of {part.format!r} or of plain bytes")
        return view.cast("B")

    def reserve(self, capacity: Any, where: str, inputs: Buffers, outputs: Buffers) -> Cells:
        """Return the capacity in elements as a cell, and append the buffers."""
        if not self.element.fixed:
            return self._reserve_each(capacity, where, inputs, outputs)
        size = self.element.given.size
        data = self._view(capacity, where, writable=True)
        if data is None:
            if (
                isinstance(capacity, bool)
                or not isinstance(capacity, int)
                or not 0 <= capacity < 1 << 31
            ):
                raise wrong(where, capacity, "a number of elements, or a writable buffer")
            data = memoryview(bytearray(capacity * size))
        outputs.append(data)
        return [data.nbytes // size]

    def _reserve_each(self, capacity: Any, where: str, inputs: Buffers, outputs: Buffers) -> Cells:
        size = self.element.answer.size
        if size and isinstance(capacity, Sequence):
            outputs.append(memoryview(bytearray(size * len(capacity))))
        return self._each(
            capacity, where, inputs,
            lambda r, at: self.element.reserve(r, at, inputs, outputs), self.element.capacity,
        )  # fmt: skip

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return a memoryview of numbers, or a list."""
        element = self.element
        if isinstance(element, Scalar):
            code: Any = element.given.format
            return next(outputs).cast(code)
        if element.fixed:
            rows = struct.iter_unpack(f"<{element.given.format}", next(outputs))
            return [element.take(None, iter(row), outputs) for row in rows]
        rows = iter([()] * len(capacity))
        if element.answer.size:
            rows = struct.iter_unpack(f"<{element.answer.format}", next(outputs))
        return [element.take(r, iter(row), outputs) for r, row in zip(capacity, rows, strict=True)]


class String(SequenceType):
    """A text that ends with NUL; an argument is str (sent as UTF-8) or bytes, a result is str.

    The capacity is a number of bytes, including the NUL.
    """

    def __init__(self) -> None:
        super().__init__("_cstring1_t", CHAR)

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return the number of bytes, including the NUL, as a cell; append the text to *inputs*."""
        text = value.encode() if isinstance(value, str) else value
        if not isinstance(text, bytes | bytearray) or 0 in text:
            raise wrong(where, value, "text without a NUL")
        inputs.append(memoryview(bytearray(text + b"\0")))
        return [len(text) + 1]

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return the text before the first NUL; the last byte counts as a NUL."""
        text = bytes(next(outputs))[:-1].partition(b"\0")[0]
        return text.decode(errors="replace")


class DmaHandle(NamedTuple):
    """A part of shared memory, named by its file descriptor; offset and length in bytes."""

    fd: int
    offset: int
    length: int


class Dma(Type):
    """A `DmaHandle`.  The caller passes it for `in` and for `rout`; it has no bytes in a block."""

    given = capacity = answer = NOTHING

    def give(self, value: Any, where: str, inputs: Buffers) -> Cells:
        """Return no cells: a handle has no bytes in a block."""
        return []

    def handle(self, value: Any, where: str) -> DmaHandle:
        """Return *value* as a handle."""
        try:
            handle = DmaHandle(*value)
            struct.pack("<iII", *handle)
        except (TypeError, struct.error):
            raise wrong(where, value, "(fd, offset, length)") from None
        return handle

    def take(self, capacity: Any, cells: Iterator[Any], outputs: Iterator[memoryview]) -> Any:
        """Return None: a handle is not a result."""
        return None


def repeated(element: Type, count: int) -> str:
    """Return the format of *count* consecutive elements."""
    text = element.given.format
    return f"{count}{text}" if isinstance(element, Scalar) else text * count


def pack_into(
    packer: struct.Struct, data: bytearray, offset: int, cells: Cells, where: str
) -> None:
    """Write *cells* to the block *data* at *offset*.

    Raises:
        LayoutError: A cell is not a number or is too large; the message begins with *where*.
    """
    try:
        packer.pack_into(data, offset, *cells)
    except (struct.error, TypeError, OverflowError) as error:
        raise LayoutError(
            f"{where}: {error}", remedy="pass numbers that the type in the interface can hold"
        ) from error


def _holds(view: memoryview, element: Type) -> bool:
    """Return whether *view* is a buffer of bytes, or of the type of *element*."""
    code = view.format.lstrip("@=<")
    if code in ("B", "b", "c") or not isinstance(element, Scalar):
        return view.itemsize in (1, element.given.size)
    kinds = ("bhilqn", "BHILQN", "fd", "?")
    kind = next((k for k in kinds if element.given.format in k), "")
    return view.itemsize == element.given.size and code in kind


CHAR = Scalar("char", "B")
SCALARS = {
    "int8": Scalar("int8_t", "b"),
    "uint8": Scalar("uint8_t", "B"),
    "int16": Scalar("int16_t", "h"),
    "uint16": Scalar("uint16_t", "H"),
    "int32": Scalar("int32_t", "i"),
    "uint32": Scalar("uint32_t", "I"),
    "int64": Scalar("int64_t", "q"),
    "uint64": Scalar("uint64_t", "Q"),
    "float": Scalar("float", "f"),
    "double": Scalar("double", "d"),
    "boolean": Scalar("uint8_t", "?"),
    "char": CHAR,
    "octet": Scalar("uint8_t", "B"),
    "wchar": Scalar("uint16_t", "H"),
    "short": Scalar("int16_t", "h"),
    "long": Scalar("int32_t", "i"),
}
