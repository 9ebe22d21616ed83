"""Interfaces and their methods: convert Python values to the buffers of a call, and back.

This module does not depend on the library that makes the call.  A `Call` holds the scalars word and
memoryviews in the order of FastRPC's argument array; a binding builds the array from them.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from npurt.errors import LayoutError, NpurtError
from npurt.hexagon.idl.types import (
    COUNT,
    BlockPart,
    Buffers,
    Cells,
    Dma,
    DmaHandle,
    SequenceType,
    Type,
    pack_into,
    padded,
    place,
)

FIRST = 2  # id of the first method; 0 and 1 are open and close; source: inc/remote.idl
ESCAPE = 31  # in the scalars: the id is 31 or more, and is in the first word of the first buffer
MAX_BUFFERS = 254  # in one call, for each direction
MAX_HANDLES = 15


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: *mode* is "in", "rout" or "inrout"."""

    name: str
    mode: str
    type: Type

    @property
    def goes_in(self) -> bool:
        """Whether the caller passes a value."""
        return self.mode != "rout"

    @property
    def comes_out(self) -> bool:
        """Whether the call returns a value."""
        return self.mode != "in" and not isinstance(self.type, Dma)

    @property
    def is_passed(self) -> bool:
        """Whether `Method.pack` takes an argument for it: a value, a space for results, or both."""
        return self.goes_in or not self.type.fixed or isinstance(self.type, Dma)

    def sent(self) -> list[BlockPart]:
        """Return the parts of the parameter in the block that is sent to the DSP."""
        parts = [self.type.given] if self.goes_in else []
        return parts + ([self.type.capacity] if self.comes_out else [])


class Method:
    """A method of an interface; ids count from 2 in the order of the interface."""

    def __init__(self, name: str, number: int, params: tuple[Param, ...]) -> None:
        self.name = name
        self.id = number
        self.params = params
        self.escaped = number >= ESCAPE
        head = [COUNT] if self.escaped else []
        parts = [p.sent() for p in params]
        self.sent_offsets, self.sent = place(head + [part for ps in parts for part in ps])
        self.answer_offsets, self.answer = place(p.type.answer for p in params if p.comes_out)
        self.sent_struct = struct.Struct(f"<{padded(self.sent).format}")
        self.answer_struct = struct.Struct(f"<{padded(self.answer).format}")

    def scalars(self, inputs: int, outputs: int, handles_in: int, handles_out: int) -> int:
        """Return the word with the id of the method and the numbers of its arguments."""
        counts = inputs << 16 | outputs << 8 | handles_in << 4 | handles_out
        return min(self.id, ESCAPE) << 24 | counts

    def pack(self, *args: Any) -> "Call":
        """Return a call with these arguments; it can be made any number of times.

        Args:
            *args: One argument for each parameter, in order.  ``in``: the value.  ``rout``
                sequence, string, or struct with such members: the space for the result, as a
                length or a buffer.  ``inrout`` sequence or string: the pair (value, space).
                Handle: a `DmaHandle`.  ``rout`` parameters of fixed size have no argument.

        Raises:
            LayoutError: The number of arguments is wrong, or an argument has the wrong type or is
                too large.
        """
        return Call(self, args)


class Call:
    """One call of a method.  The addresses of its buffers never change.

    Attributes:
        scalars: The scalars word for remote_handle64_invoke.
        inputs: Buffers that are sent to the DSP, in order; may be read-only.
        outputs: Buffers that the DSP fills, in order.
        handles_in: Handles of ``in`` parameters, in order.
        handles_out: Handles of ``rout`` parameters, in order.
    """

    def __init__(self, method: Method, args: tuple[Any, ...]) -> None:
        passed = [p for p in method.params if p.is_passed]
        if len(args) != len(passed):
            raise LayoutError(
                f"{method.name} takes {len(passed)} arguments, and {len(args)} were given",
                remedy=f"pass {', '.join(p.name for p in passed) or 'none'}",
            )
        self.method = method
        self._capacities: dict[str, Any] = {}
        self._spans: dict[str, slice] = {}  # the cells of each parameter in `_cells`
        self._cells: Cells = [method.id] if method.escaped else []
        self._block = bytearray(method.sent_struct.size)
        self._answer = bytearray(method.answer_struct.size)
        inputs: Buffers = [memoryview(self._block)] if self._block else []
        outputs: Buffers = [memoryview(self._answer)] if self._answer else []
        handles: dict[str, list[DmaHandle]] = {"in": [], "rout": []}
        for param, arg in zip(passed, args, strict=True):
            self._add(param, arg, inputs, outputs, handles)
        self._write()
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.handles_in = tuple(handles["in"])
        self.handles_out = tuple(handles["rout"])
        self._check_counts()
        self.scalars = method.scalars(
            len(inputs), len(outputs), len(self.handles_in), len(self.handles_out)
        )

    def _add(
        self,
        param: Param,
        arg: Any,
        inputs: Buffers,
        outputs: Buffers,
        handles: Mapping[str, list[DmaHandle]],
    ) -> None:
        where = f"{self.method.name}: {param.name}"
        if isinstance(param.type, Dma):
            handles[param.mode].append(param.type.handle(arg, where))
            return
        start = len(self._cells)
        value = capacity = arg
        if param.mode == "inrout" and not param.type.fixed:
            value, capacity = _pair(arg, where)
        if param.goes_in:
            self._cells += param.type.give(value, where, inputs)
        if param.comes_out and not param.type.fixed:
            count = param.type.reserve(capacity, where, inputs, outputs)
            if param.mode == "inrout" and count[0] < self._cells[-1]:
                raise LayoutError(
                    f"{where}: {self._cells[-1]} elements go in, and there is room for {count[0]}",
                    remedy="pass room for at least as many elements as go in",
                )
            self._cells += count
            self._capacities[param.name] = capacity
        self._spans[param.name] = slice(start, len(self._cells))

    def _check_counts(self) -> None:
        buffers = max(len(self.inputs), len(self.outputs))
        handles = max(len(self.handles_in), len(self.handles_out))
        if buffers > MAX_BUFFERS or handles > MAX_HANDLES:
            raise LayoutError(
                f"{self.method.name}: {buffers} buffers and {handles} handles in one direction; "
                f"FastRPC takes {MAX_BUFFERS} and {MAX_HANDLES}",
                remedy="pass fewer elements in one call",
            )

    def _write(self) -> None:
        """Write the cells to the first buffer."""
        try:
            self.method.sent_struct.pack_into(self._block, 0, *self._cells)
        except (struct.error, TypeError, OverflowError):
            self._raise_first()
            raise

    def _raise_first(self) -> None:
        """Raise LayoutError for the first parameter whose value is not a number or is too large."""
        for param in self.method.params:
            if param.name in self._spans:
                packer = struct.Struct("<" + "".join(part.format for part in param.sent()))
                cells = self._cells[self._spans[param.name]]
                where = f"{self.method.name}: {param.name}"
                pack_into(packer, bytearray(packer.size), 0, cells, where)

    def repack(self, **values: Any) -> None:
        """Set new values of ``in`` parameters of fixed size, in place.

        To change the data of a sequence, write to the buffer that was passed to `pack`.

        Raises:
            LayoutError: There is no such parameter, its size is not fixed, or a value does not fit.
        """
        params = {p.name: p for p in self.method.params if p.goes_in and p.type.fixed}
        cells = list(self._cells)
        for name, value in values.items():
            where = f"{self.method.name}: {name}"
            if name not in params or name not in self._spans:
                raise LayoutError(
                    f"{where} is not a parameter of fixed size that goes in",
                    remedy=f"repack {', '.join(params) or 'nothing'}; pack() the rest anew",
                )
            cells[self._spans[name]] = params[name].type.give(value, where, [])
        before, self._cells = self._cells, cells
        try:
            self._write()
        except LayoutError:
            self._cells = before
            self._write()
            raise

    def unpack(self) -> tuple[Any, ...]:
        """Return the results: the value of each ``rout`` and ``inrout`` parameter.

        A sequence of numbers is a memoryview of a buffer of the call.  The next call overwrites it.
        """
        cells: Iterator[Any] = iter(self.method.answer_struct.unpack(self._answer))
        outputs = iter(self.outputs[1:] if self._answer else self.outputs)
        return tuple(
            p.type.take(self._capacities.get(p.name), cells, outputs)
            for p in self.method.params
            if p.comes_out
        )


def _pair(arg: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(arg, tuple) or len(arg) != 2:
        raise LayoutError(
            f"{where} goes in and comes out", remedy="pass the pair (value, room for the result)"
        )
    return arg


@dataclass(frozen=True, slots=True)
class Interface:
    """The declarations of an IDL file."""

    name: str
    methods: tuple[Method, ...]
    types: Mapping[str, Type] = field(default_factory=dict)  # declared types by C name, in order
    constants: Mapping[str, Any] = field(default_factory=dict)  # by C name
    version: str = ""  # IDL_VERSION: up to three numbers, separated by dots

    @property
    def uri(self) -> str:
        """The URI with which the interface is opened, without the domain."""
        version = f"&_idlver={self.version}" if self.version else ""
        name = self.name
        return f"file:///lib{name}_skel.so?{name}_skel_handle_invoke&_modver=1.0{version}"

    def method(self, name: str) -> Method:
        """Return the method called *name*.

        Raises:
            NpurtError: The interface has no such method.
        """
        for method in self.methods:
            if method.name == name:
                return method
        names = ", ".join(m.name for m in self.methods)
        raise NpurtError(
            f"interface {self.name} has no method {name!r}", remedy=f"it has {names or 'none'}"
        )


def refusal(params: tuple[Param, ...]) -> str | None:
    """Return the reason why these parameters cannot be passed in one call, or None."""
    fixed_in = sum(not p.type.fixed for p in params if p.goes_in) + 1
    fixed_out = sum(not p.type.fixed for p in params if p.comes_out) + 1
    if max(fixed_in, fixed_out) > MAX_BUFFERS:
        return f"at most {MAX_BUFFERS - 1} sequences and strings in one direction"
    for mode in ("in", "rout"):
        if sum(isinstance(p.type, Dma) and p.mode == mode for p in params) > MAX_HANDLES:
            return f"at most {MAX_HANDLES} dmahandles in one direction"
    for param in params:
        sequence = isinstance(param.type, SequenceType) and param.type.nesting == 1
        simple = sequence or (param.type.fixed and not isinstance(param.type, Dma))
        if param.mode == "inrout" and not simple:  # nor does qaic: Pack.hs, skelCopyIR
            return "only types of fixed size, sequences of these types, and strings can be inrout"
    return None
