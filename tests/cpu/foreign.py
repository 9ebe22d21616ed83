"""Programs for other machines: driver.c runs them, under an emulator or natively.

A `Recorded` program lists the arrays its ops point to.  `run_all` writes many of them to a file
(the format is driver.c's), runs the driver once, and copies the resulting memory back into the
arrays.
"""

import ctypes
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import Input
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable, TableSpan
from tools import build

HERE = Path(__file__).parent
DRIVER = HERE / "driver.c"


@dataclass(frozen=True)
class Foreign:
    """A substitute for an engine while a program is built, which reads only the kernel set."""

    isa: int


def extent(array):
    """Return the first address of *array* and the one past its last byte."""
    first = array.ctypes.data
    reach = [
        (n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True) if n > 1
    ]
    low = first + sum(step for step in reach if step < 0)
    return low, first + sum(step for step in reach if step > 0) + array.itemsize


class Recorded(Program):
    """A program that records the memory of its operands."""

    def __init__(self, engine):
        super().__init__(engine)
        self.arrays = []
        self.rows, self.position, self.head, self.threads = 1, 0, 0, 1
        self.pages = None  # of keys and values
        self.spans = None  # of several sequences; None: one sequence as set above
        self.ends: int | None = None  # the op whose verification must fail

    def _address(self, array, ctype="float *"):
        if array is not None and array.size:
            self.arrays.append(array)
        return super()._address(array, ctype)

    def _input(self, struct, value: Input):
        self.arrays.append(value.values)
        if value.quantised:
            self.arrays += [value.codes, value.blocks]
        if value.int16:
            self.arrays.append(value.remainders)
        super()._input(struct, value)

    def table(self):
        """Return the row table of a run; the rows from *head* on are selected."""
        one = [TableSpan(self.rows, self.position, 0, self.pages)] if self.rows else []
        spans = one if self.spans is None else self.spans
        rows = sum(span.rows for span in spans)
        return RowTable(spans, np.arange(self.head, rows, dtype=np.int32))

    def run(self, table=None, start=0):
        """Run the program on the rows of *table*, by default those of `self.table()`."""
        return super().run(table or self.table(), start)

    def memory(self):
        """Return the sorted extents of the arrays; overlapping extents are merged."""
        merged = []
        for low, high in sorted(map(extent, self.arrays)):
            if merged and low < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return merged

    def encoded(self):
        """Return the program as driver.c reads it."""
        ops = bytes(abi.ffi().buffer(self.ops))
        memory = self.memory()
        pointers = [
            (8 * at, index, word - low)
            for at, (word,) in enumerate(struct.iter_unpack("<Q", ops))
            for index, (low, high) in enumerate(memory)
            if low <= word < high
        ]
        table = self.table()
        counts = (len(self), len(table.spans), len(table.selected), self.threads)
        parts = [struct.pack("<6q", *counts, len(memory), len(pointers))]
        for span in table.spans:
            pages = b"" if span.pages is None else span.pages.tobytes()
            parts += [struct.pack("<4q", *span[:3], len(pages) // 4), pages]
        parts += [
            table.selected.tobytes(),
            ops,
            *(struct.pack("<3q", *pointer) for pointer in pointers),
        ]
        for low, high in memory:
            parts += [struct.pack("<q", high - low), ctypes.string_at(low, high - low)]
        return b"".join(parts)

    def decode(self, out, at):
        """Copy the memory in *out* from *at* on into the arrays; return the end offset."""
        (done,) = struct.unpack_from("<q", out, at)
        expected = len(self) if self.ends is None else self.ends
        assert done == expected, f"the program of {len(self)} ops ended with {done}"
        at += 8
        for low, high in self.memory():
            ctypes.memmove(low, out[at : at + high - low], high - low)
            at += high - low
        return at


@dataclass(frozen=True)
class Machine:
    """A compiled driver and the command that runs it."""

    command: tuple[str, ...]
    force: bool = False

    def isas(self):
        """Return the kernel sets, best first: name -> (index, whether the machine runs it)."""
        lines = [line.split() for line in self._run().stdout.splitlines()]
        return {name: (i, works == "1") for i, (name, works) in enumerate(lines)}

    def run_all(self, programs, folder):
        """Run *programs*, copy the results into their arrays, and return the driver's stderr."""
        data, results = folder / "programs", folder / "results"
        data.write_bytes(b"".join(program.encoded() for program in programs))
        done = self._run(*(["--force"] if self.force else []), data, results)
        out, at = results.read_bytes(), 0
        for program in programs:
            at = program.decode(out, at)
        assert at == len(out)
        return done.stderr

    def _run(self, *args):
        done = subprocess.run([*self.command, *args], text=True, capture_output=True)
        assert done.returncode == 0, f"{self.command} ended with {done.returncode}: {done.stderr}"
        return done


def compiled(target, folder, *sources):
    """Compile the driver with the kernels and *sources*; return its path."""
    return build.compile_executable(
        [*build.library_sources(), DRIVER, *sources], target, folder / f"driver-{target}"
    )


def with_pool(source, *, late=False):
    """Return *source* and the kernels' sources; if *late*, threads sleep at random."""
    sources = [s for s in build.library_sources() if not late or s.name != "pool.c"]
    return [*sources, source, *([HERE / "late_pool.c"] if late else [])]


def emulated(program, cpu):
    """Return the machine that emulates *cpu* by qemu-aarch64."""
    qemu = shutil.which("qemu-aarch64")
    if qemu is None:
        pytest.fail("qemu-aarch64 is missing: run .ci/qemu, or install the package qemu-user")
    return Machine((qemu, "-cpu", cpu, str(program)))


def same(have, want, what=""):
    """Raise unless the arrays are equal bit for bit; NaNs are equal whatever their payload."""
    np.testing.assert_array_equal(have, want, err_msg=what, strict=True)
    if have.dtype.kind == "f":
        signs = (np.signbit(a) & ~np.isnan(a) for a in (have, want))
        np.testing.assert_array_equal(*signs, err_msg=f"{what}: signs")
