"""Helpers that write valid or damaged GGUF files byte by byte, independently of npurt's reader.

Source: ggml docs/gguf.md.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64), "BbHhIifBQqd", strict=True))


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """Return a value of *kind*; an array's *content* is (element kind, elements)."""
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        element, items = content
        body = b"".join(value(element, item) for item in items)
        return struct.pack("<IQ", element, len(items)) + body
    return struct.pack("<" + PACK[kind], content)


def view(letter: str, numbers: Iterable[Any]) -> "memoryview[Any]":
    """Return numbers or flags as a memoryview, the type of arrays in a header's metadata."""
    values = list(numbers)
    return memoryview(struct.pack(f"{len(values)}{letter}", *values)).cast(letter)


@dataclass
class Tensor:
    name: str | bytes = "a.weight"
    dims: tuple[int, ...] = (32, 2)  # the fastest-varying dimension first
    kind: int = 0  # ggml type f32
    offset: int = 0
    n_dims: int | None = None  # the value written to the file, if it differs from the true one

    def row(self) -> bytes:
        n_dims = len(self.dims) if self.n_dims is None else self.n_dims
        return (
            string(self.name)
            + struct.pack(f"<I{len(self.dims)}Q", n_dims, *self.dims)
            + struct.pack("<IQ", self.kind, self.offset)
        )


@dataclass
class File:
    """A small valid file; `but` returns a copy with changes."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[tuple[str | bytes, int, Any]] = field(
        default_factory=lambda: [
            ("general.architecture", STRING, "llama"),
            ("general.alignment", U32, 32),
            ("llama.block_count", U32, 2),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "", "bc", "Ġ"])),
            ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, -1.0])),
            ("tokenizer.ggml.add_bos_token", BOOL, 1),
        ]
    )
    tensors: list[Tensor] = field(
        default_factory=lambda: [
            Tensor("a.weight", (32, 2), 0, 0),
            Tensor("b.weight", (64, 3), 8, 256),
        ]
    )
    n_keys: int | None = None  # the value written to the header, if it differs from the true one
    n_tensors: int | None = None
    data: bytes = bytes(range(256)) + bytes(3 * 2 * 34)

    def but(self, **changes: Any) -> "File":
        return replace(self, **changes)

    def with_key(self, key: str | bytes, kind: int, content: Any) -> "File":
        return self.but(keys=[*(k for k in self.keys if k[0] != key), (key, kind, content)])

    def header(self) -> bytes:
        counts = (
            len(self.tensors) if self.n_tensors is None else self.n_tensors,
            len(self.keys) if self.n_keys is None else self.n_keys,
        )
        parts = [self.magic, struct.pack("<IQQ", self.version, *counts)]
        for key, kind, content in self.keys:
            raw = content if isinstance(content, bytes) and kind != STRING else value(kind, content)
            parts += [string(key), struct.pack("<I", kind), raw]
        parts += [tensor.row() for tensor in self.tensors]
        return b"".join(parts)

    def encode(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % 32) + self.data
