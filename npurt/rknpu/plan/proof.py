"""Prove that a program touches only its buffers and cannot hang the NPU, before it is submitted.

The proof depends only on the words of the program, and checks all its tasks at once, in numpy.  It
holds as long as the words and the buffers do not change, so a prepared program is proven once.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from npurt.errors import LayoutError
from npurt.rknpu.isa import cbuf, regcmd
from npurt.rknpu.isa.formats import ATOM, FORMATS, NumberFormat
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import ADDRESSES, U64, stride, template
from npurt.rknpu.isa.regs import REG
from npurt.rknpu.isa.task import MAX_N, Task

I64 = npt.NDArray[np.int64]

HEAD = 0xFFFF_0000_0000_FFFF  # mask of a word's target and offset
TAIL_NAMES = ("PC_BASE_ADDRESS", "PC_REGISTER_AMOUNTS", "MARK", "ENABLE")

# The fields in which tasks of one format differ; an empty tuple means all fields.
FREE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(ADDRESSES, ()),
    "CNA_CONV_CON1": ("group_line_off",),
    "CNA_DATA_SIZE0": (),
    "CNA_CBUF_CON0": ("data_bank", "weight_bank"),  # without the bits that reuse data in CBUF
    "CNA_CBUF_CON1": (),
    "CNA_DMA_CON1": (),
    "CNA_DMA_CON2": (),
    "CNA_FC_DATA_SIZE1": (),  # K
    "CNA_WEIGHT_SIZE2": ("weight_kernels",),  # N
    "DPU_DST_SURF_STRIDE": (),
    "DPU_DATA_CUBE_WIDTH": (),
    "DPU_DATA_CUBE_HEIGHT": ("height",),
    "DPU_DATA_CUBE_NOTCH_ADDR": (),
    "DPU_SURFACE_ADD": (),
}


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of each task ``[T]``, read from the free fields."""

    width: I64
    height: I64
    k: I64
    n: I64
    kernel_bytes: I64
    out_width: I64
    out_height: I64


# The fields that follow from the sizes, with their values; fields that are not listed are 0.
DERIVED: dict[str, dict[str, Callable[[_Sizes], I64]]] = {
    "CNA_CONV_CON2": {"feature_grains": lambda p: p.height + 1},
    "CNA_DATA_SIZE1": {"datain_channel": lambda p: p.k, "datain_channel_real": lambda p: p.k - 1},
    "CNA_DATA_SIZE2": {"dataout_width": lambda p: p.width},
    "CNA_DATA_SIZE3": {"dataout_atomics": lambda p: p.width * p.height},
    "CNA_WEIGHT_SIZE0": {"weight_bytes": lambda p: p.n * p.kernel_bytes},
    "CNA_WEIGHT_SIZE1": {"weight_bytes_per_kernel": lambda p: p.kernel_bytes},
    "CNA_FC_DATA_SIZE0": {"dma_width": lambda p: p.width, "dma_height": lambda p: p.height},
    "CORE_DATAOUT_SIZE_0": {
        "dataout_width": lambda p: p.width - 1,
        "dataout_height": lambda p: p.height - 1,
    },
    "CORE_DATAOUT_SIZE_1": {"dataout_channel": lambda p: p.n - 1},
    "DPU_DATA_CUBE_CHANNEL": {"channel": lambda p: p.n - 1, "orig_channel": lambda p: p.n - 1},
    "DPU_WDMA_SIZE_0": {"channel_wdma": lambda p: p.n - 1},
    "DPU_WDMA_SIZE_1": {
        "width_wdma": lambda p: p.out_width - 1,
        "height_wdma": lambda p: p.out_height - 1,
    },
    "DPU_RDMA_DATA_CUBE_WIDTH": {"width": lambda p: p.out_width - 1},
    "DPU_RDMA_DATA_CUBE_HEIGHT": {"height": lambda p: p.out_height - 1},
    "DPU_RDMA_DATA_CUBE_CHANNEL": {"channel": lambda p: p.n - 1},
}


class Role(Enum):
    """The use of a buffer that is permitted to the NPU."""

    PROGRAM = "fetch commands from"
    INPUT = "read"
    OUTPUT = "write"
    TASKS = "look at"  # only the kernel uses such a buffer


class BufferSpan(NamedTuple):
    """A buffer in the NPU's address space."""

    start: int
    end: int
    role: Role
    name: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The memory that a proven program accesses."""

    reads: frozenset[BufferSpan]
    writes: frozenset[BufferSpan]
    results: I64  # first byte and end of the bytes that each task writes, ``[T, 2]``


def prove(
    words: U64,
    spans: Sequence[BufferSpan],
    *,
    at: int,
    chained: bool,
    profile: Profile = Profile.FULL,
) -> Proof:
    """Prove that a program is safe, and return the proof.

    Args:
        words: The program ``[T, stride]``, as from `program.link`.
        spans: Every buffer that the NPU can access, sorted by address.
        at: The address of the words in the NPU's address space.
        chained: Whether each task has to start the next.
        profile: The blocks that each task has to start.

    Raises:
        LayoutError: The proof failed; the message names the task and the register.
    """
    program = _Program(words, profile)
    program.check_tails(at, chained)
    program.check_sizes()
    program.check_banks()
    feature, weight, result = ADDRESSES
    results = program.results()
    code = np.array([[at, at + words.nbytes]], np.int64)
    _find(TAIL_NAMES[0], code, spans, Role.PROGRAM)
    reads = _find(feature, program.features(), spans, Role.INPUT)
    reads |= _find(weight, program.weights(), spans, Role.INPUT)
    return Proof(reads, _find(result, results, spans, Role.OUTPUT), results)


def _refuse(register: str, task: int, why: str) -> NoReturn:
    raise LayoutError(
        f"task {task} of the program: {register} {why}",
        remedy="nothing was submitted; `npurt regcmd decode` names every field of the program",
    )


@functools.cache
def _format_of(data_format: int) -> NumberFormat | None:
    """Return the number format for a value of DPU_DATA_FORMAT."""
    for format in FORMATS.values():
        word = _sample(format, Profile.SHORT)[_index(Profile.SHORT)["DPU_DATA_FORMAT"]]
        if regcmd.decode(int(word)).value == data_format:
            return format
    return None


def _sample(format: NumberFormat, profile: Profile) -> U64:
    """Return the smallest valid task of *format*."""
    return template(
        Task(format, Layout.ROW, 1, format.k_step, format.group, 1, format.k_step), profile
    )


@functools.cache
def _index(profile: Profile) -> dict[str, int]:
    """Return the index of the word that writes a register."""
    return {register.name: i for i, register in enumerate(profile.order)}


@functools.cache
def _fixed(format: NumberFormat, profile: Profile) -> tuple[U64, U64]:
    """Return (mask, value) of the bits that all tasks of *format* have in common."""
    body = len(profile.order)
    mask = np.full(body, (1 << 64) - 1, np.uint64)
    for i, register in enumerate(profile.order):
        if register.name in FREE or register.name in DERIVED:
            names = FREE.get(register.name) or register.fields
            free = sum(register.fields[name].mask for name in names)
            mask[i] &= np.uint64(~(free << 16) & (1 << 64) - 1)
    return mask, _sample(format, profile)[:body] & mask


class _Program:
    """The words of a program, with access to registers and fields as int64 arrays ``[T]``."""

    def __init__(self, words: U64, profile: Profile) -> None:
        shape = words.shape[1:] == (stride(profile),) and len(words) > 0
        if words.dtype != np.uint64 or not shape:
            raise LayoutError(
                f"a program of {words.dtype} {words.shape} is not uint64 [T, {stride(profile)}]",
                remedy="make it with npurt.rknpu.isa.program.link",
            )
        self.words = words
        self.profile = profile
        self.body = len(profile.order)
        self._index = _index(profile)
        self._values = (words >> np.uint64(16)).astype(np.int64) & 0xFFFF_FFFF
        self.format = self._check_words()
        k = self.field("CNA_FC_DATA_SIZE1", "dma_channel")
        self.sizes = _Sizes(
            width=self.field("CNA_DATA_SIZE0", "datain_width"),
            height=self.field("CNA_DATA_SIZE0", "datain_height"),
            k=k,
            n=self.field("CNA_WEIGHT_SIZE2", "weight_kernels"),
            kernel_bytes=k * self.format.bits // 8,
            out_width=self.field("DPU_DATA_CUBE_WIDTH", "width") + 1,
            out_height=self.field("DPU_DATA_CUBE_HEIGHT", "height") + 1,
        )

    def value(self, register: str) -> I64:
        """Return a register's value in each task."""
        values: I64 = self._values[:, self._index[register]]
        return values

    def field(self, register: str, name: str) -> I64:
        """Return a field's value in each task."""
        field = REG[register].fields[name]
        bits = self.value(register) >> field.lo & ((1 << field.width) - 1)
        return bits - (bits >> (field.width - 1) << field.width) if field.signed else bits

    def require(self, register: str, good: npt.NDArray[np.bool_], why: str) -> None:
        """Raise LayoutError for the first task where *good* is False."""
        if not good.all():
            task = int(np.argmin(good))
            _refuse(register, task, f"= {self.value(register)[task]:#x} {why}")

    def _check_words(self) -> NumberFormat:
        """Check the order of the registers, their constants, and that reserved bits are 0.

        Returns:
            The number format of the program.
        """
        data_format = int(self.value("DPU_DATA_FORMAT")[0])
        format = _format_of(data_format)
        if format is None:
            _refuse("DPU_DATA_FORMAT", 0, f"= {data_format:#x} is of no known number format")
        mask, right = _fixed(format, self.profile)
        wrong = (self.words[:, : self.body] ^ right) & mask
        if wrong.any():
            task, i = map(int, np.argwhere(wrong)[0])
            name = self.profile.order[i].name
            found = regcmd.describe(int(self.words[task, i]))
            if int(wrong[task, i]) & HEAD:
                _refuse(name, task, f"is not written: there is {found.name}")
            bits = int(wrong[task, i]) >> 16
            _refuse(name, task, f"= {found.value:#x} has bits {bits:#x} wrong for {format.name}")
        return format

    def check_tails(self, at: int, chained: bool) -> None:
        """Check that each task starts its blocks and, in a chain, the next task, and then ends."""
        count, step = len(self.words), stride(self.profile) * 8
        right = np.zeros((count, stride(self.profile) - self.body), np.uint64)
        for i in range(count):
            after = at + (i + 1) * step if chained and i + 1 < count else None
            tail = regcmd.tail(self.profile.enable, after, self.profile.words)
            right[i, : regcmd.TAIL] = [regcmd.encode(write) for write in tail]
        wrong = self.words[:, self.body :] != right
        if wrong.any():
            task, i = map(int, np.argwhere(wrong)[0])
            found = int(self.words[task, self.body + i])
            name = TAIL_NAMES[i] if i < regcmd.TAIL else "the filler after ENABLE"
            _refuse(name, task, f"is {found:#018x}, not {int(right[task, i]):#018x}")

    def check_sizes(self) -> None:
        """Check that the sizes are valid, and that all registers agree on them."""
        of, format = self.sizes, self.format
        pixels = of.width * of.height
        self.require("CNA_DATA_SIZE0", pixels > 0, "is empty")
        same = of.out_width * of.out_height == pixels
        self.require("DPU_DATA_CUBE_HEIGHT", same, "disagrees with the number of rows read")
        self.require("CNA_FC_DATA_SIZE1", (of.k > 0) & (of.k % format.k_step == 0), "is no whole K")
        longest = f"is more than a sum of {format.name} may have, {format.k_max}"
        self.require("CNA_FC_DATA_SIZE1", of.k <= format.k_max, longest)
        whole = (of.n > 0) & (of.n <= MAX_N) & (of.n % format.group == 0)
        self.require("CNA_WEIGHT_SIZE2", whole, "is no whole N")
        for register, fields in DERIVED.items():
            if register in self._index:
                known = REG[register].fields
                right = sum(value(of) << known[name].lo for name, value in fields.items())
                self.require(register, self.value(register) == right, "disagrees with other sizes")

    def check_banks(self) -> None:
        """Check that the features of each task and a group of kernels fit CBUF."""
        of = self.sizes
        data = self.field("CNA_CBUF_CON0", "data_bank")
        weight = self.field("CNA_CBUF_CON0", "weight_bank")
        entries = self.field("CNA_CBUF_CON1", "data_entries")
        lines = zip(of.k.tolist(), of.width.tolist(), strict=True)
        need = np.array([cbuf.entries(self.format, k, width) for k, width in lines])
        self.require("CNA_CBUF_CON1", entries == need, "is not the number of entries of a line")
        self.require("CNA_CBUF_CON0", data + weight <= cbuf.BANKS, "takes too many banks")
        enough = of.height * entries * cbuf.ENTRY_BYTES <= data * cbuf.BANK_BYTES
        self.require("CNA_CBUF_CON0", enough, "has too few banks for the features")
        enough = self.format.group * of.kernel_bytes <= weight * cbuf.BANK_BYTES
        self.require("CNA_CBUF_CON0", enough, "has too few banks for a group of kernels")

    def features(self) -> I64:
        """Return start and end of the bytes of A that each task reads, ``[T, 2]``."""
        of = self.sizes
        by_line = self.field("CNA_CONV_CON1", "group_line_off") == 1
        line_stride = self.field("CNA_DMA_CON1", "line_stride")
        packed = by_line | (of.height <= 4) | (line_stride == 4 * of.width)
        self.require("CNA_DMA_CON1", packed, "is not the pitch of four lines")
        lines = np.where(by_line, 1, 4)  # lines that are fetched together
        surf_stride = lines * of.width + self.field("CNA_DMA_CON2", "surf_stride")
        return self._walk(
            "CNA_FEATURE_DATA_ADDR",
            ("CNA_DATA_SIZE0", of.width, 1),
            ("CNA_DMA_CON1", of.height, np.where(by_line, line_stride, of.width)),
            ("CNA_DMA_CON2", of.kernel_bytes // ATOM, surf_stride),
        )

    def weights(self) -> I64:
        """Return start and end of the bytes of B's image that each task reads, ``[T, 2]``."""
        atoms = self.sizes.n * self.sizes.kernel_bytes // ATOM
        return self._walk("CNA_DCOMP_ADDR0", ("CNA_WEIGHT_SIZE0", atoms, 1))

    def results(self) -> I64:
        """Return start and end of the bytes of C that each task writes, ``[T, 2]``."""
        of = self.sizes
        notch = self.field("DPU_DATA_CUBE_NOTCH_ADDR", "notch_addr_0")
        same = notch == self.field("DPU_DATA_CUBE_NOTCH_ADDR", "notch_addr_1")
        self.require("DPU_DATA_CUBE_NOTCH_ADDR", same, "has two values")
        stride_name, add_name = "DPU_DST_SURF_STRIDE", "DPU_SURFACE_ADD"
        surf_stride = self.field(stride_name, "dst_surf_stride")
        surf_add = self.field(add_name, "surf_add")
        follows = surf_add == self.format.surfaces * surf_stride
        self.require(add_name, follows, "is not where the next group of surfaces begins")
        return self._walk(
            "DPU_DST_BASE_ADDR",
            ("DPU_DATA_CUBE_WIDTH", of.out_width, 1),
            ("DPU_DATA_CUBE_NOTCH_ADDR", of.out_height, of.out_width + notch),
            (stride_name, self.format.surfaces, surf_stride),
            (add_name, of.n // self.format.group, surf_add),
        )

    def _walk(self, address: str, *steps: tuple[str, I64 | int, I64 | int]) -> I64:
        """Return start and end of the bytes that a walk covers, ``[T, 2]``; refuse repeated atoms.

        Args:
            address: The register with the start address.
            steps: For each dimension: its register, its number of atoms, and their distance.
        """
        zeros = np.zeros(len(self.words), np.int64)
        count = np.stack([zeros + many for _, many, _ in steps], axis=1)
        far = np.stack([zeros + apart for _, _, apart in steps], axis=1)
        far[count == 1] = 1 << 40  # unused stride of a dimension of one atom; sorts last
        reach = (count - 1) * far
        order = np.argsort(far, axis=1)
        inner = np.take_along_axis(reach, order, axis=1)
        inner = np.cumsum(inner, axis=1) - inner
        twice = np.take_along_axis(far, order, axis=1) <= inner
        if twice.any():
            task, place = np.argwhere(twice)[0]
            _refuse(steps[order[task, place]][0], task, "makes the task access some bytes twice")
        start = self.value(address)
        self.require(address, start % ATOM == 0, f"is no multiple of {ATOM}")
        return np.stack([start, start + (reach.sum(axis=1) + 1) * ATOM], axis=1)


def _find(
    register: str, ranges: I64, spans: Sequence[BufferSpan], role: Role
) -> frozenset[BufferSpan]:
    """Return the buffers that contain *ranges* ``[T, 2]``, each range within a single buffer."""
    found = set()
    for task, (low, high) in enumerate(ranges.tolist()):
        place = bisect_right(spans, low, key=_start) - 1
        span = spans[place] if place >= 0 else None
        if span is None or high > span.end:
            near = f"; {span.name} is {span.start:#x} .. {span.end:#x}" if span else ""
            _refuse(register, task, f"reaches {low:#x} .. {high:#x}, no buffer of ours{near}")
        if span.role is not role:
            _refuse(register, task, f"would {role.value} {span.name}, a buffer for another use")
        found.add(span)
    return frozenset(found)


def _start(span: BufferSpan) -> int:
    return span.start
