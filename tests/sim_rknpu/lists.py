"""Register lists and layouts of RK3588 matmuls, written from public facts for these tests.

This code shares nothing with npurt/rknpu, so the simulator compares two interpretations of the
facts.  Sources:
mtx512/rk3588-npu (NATIVE-H), happyme531/rknpu2_matmul_open (ROW, NATIVE-W, tiles), rocket-userspace
(the list of 126 words, layouts), Mesa's registers.xml (fields).
"""

from dataclasses import dataclass, field

import numpy as np

CNA, CORE, DPU, RDMA, PC = 0x0201, 0x0801, 0x1001, 0x2001, 0x0101
MARKER, ENABLE = 0x0041 << 48, 0x0081
FULL, SHORT, FLYING = 0x1D, 0x0D, 0x18
ATOM, BANK, ENTRY, BANKS = 16, 32768, 64, 12


@dataclass(frozen=True)
class Type:
    """An input type: how many kernels and channels the MAC array takes at a time."""

    code: int
    bits: int
    group: int
    tile: int
    dtype: type


TYPES = {
    "int8": Type(0, 8, 32, 32, np.int8),
    "fp16": Type(2, 16, 16, 32, np.float16),
    "bf16": Type(3, 16, 16, 32, np.uint16),
    "tf32": Type(7, 32, 16, 16, np.float32),
    "int4": Type(6, 4, 64, 32, np.int8),
}
# input, output -> DPU 0x4010, DPU 0x4084, type of an output element
OUTPUTS = {
    ("int8", "int32"): (0x80000000, 1, np.int32),
    ("int8", "fp32"): (0xA0000000, 1, np.float32),
    ("int8", "fp16"): (0x40000000, 0x10001, np.float16),
    ("fp16", "fp32"): (0xA8000002, 1, np.float32),
    ("fp16", "fp16"): (0x48000002, 0x10001, np.float16),
    ("bf16", "bf16"): (0x6C000003, 0x10001, np.uint16),
    ("bf16", "fp32"): (0xAC000003, 1, np.float32),
    ("tf32", "fp32"): (0xB4000005, 1, np.float32),
    ("int4", "int16"): (0x38000006, 1, np.int16),
}


def up(value, multiple):
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Task:
    """One matmul task: C[m, n] = A[m, k] . B[n, k]^T; k and n are padded already.

    mode: "row", "native-w", "native-h" or "panel8", "panel16".
    rows, first: For a tile of a larger C in native-w: rows of C, and the tile's first row.
    columns: For a tile of a larger C in row: columns of C.
    """

    m: int
    k: int
    n: int
    mode: str = "row"
    types: tuple[str, str] = ("int8", "int32")
    a: int = 0
    b: int = 0
    c: int = 0
    enable: int = FULL
    rows: int = 0
    first: int = 0
    columns: int = 0
    reuse: int = 0  # bits 12, 13 of CBUF_CON0
    changes: dict[int, int] = field(default_factory=dict)  # offset -> value, for bad lists

    @property
    def type(self):
        return TYPES[self.types[0]]

    @property
    def out_bytes(self):
        return np.dtype(OUTPUTS[self.types][2]).itemsize

    def cube(self):
        """Return (width, height) of the features, and whether lines are fetched separately."""
        if self.mode == "row":
            return 1, self.m, 1
        if self.mode.startswith("panel"):
            p = int(self.mode[5:])
            return p, self.m // p, 1
        if self.mode == "native-h":
            return 1, self.m, 0
        return self.m, 1, int(bool(self.rows))

    def strides(self):
        """Return LINE_STRIDE and SURF_STRIDE in atoms, the latter as a signed number."""
        atoms = self.k * self.type.bits // 8 // ATOM
        width = self.cube()[0]
        if self.mode == "row" or self.mode.startswith("panel"):
            return width * atoms, 0
        if self.mode == "native-h":
            return 4, self.m - 4
        return (self.rows, self.rows - self.m) if self.rows else (4 * self.m, -3 * self.m)

    def entries(self):
        """Return the 64-byte CBUF entries of a line."""
        atoms, width = self.k * self.type.bits // 8 // ATOM, self.cube()[0]
        rest = {0: 0, 3: width}.get(atoms % 4, -(-(atoms % 4) * width // 4))
        return atoms // 4 * width + rest

    def banks(self):
        """Return the number of data banks and the least number of weight banks."""
        data = -(-self.cube()[1] * self.entries() * ENTRY // BANK)
        kernel = self.k * self.type.bits // 8
        return data, -(-self.type.group * kernel // BANK)

    def output(self):
        """Return width, height, notch, surface stride and surfaces of a group of the output."""
        width, height, _ = self.cube()
        surfaces = self.type.group * self.out_bytes // ATOM
        per_atom = ATOM // self.out_bytes
        if self.mode == "row":
            return width, height, (self.columns or self.n) // per_atom - 1, ATOM, surfaces
        if self.mode.startswith("panel"):
            return width, height, (self.n // per_atom - 1) * width, ATOM * width, surfaces
        return width, height, 0, ATOM * (self.rows or self.m), surfaces

    def registers(self):
        """Return [(target, offset, value)] of the body, in the order of the 126-word list."""
        t = self.type
        code, k, n = t.code, self.k, self.n
        width, height, lines = self.cube()
        line, surface = self.strides()
        kernel = k * t.bits // 8
        data, _ = self.banks()
        ow, oh, notch, pitch, surfaces = self.output()
        data_format, scale, out_type = OUTPUTS[self.types]
        size_e = surfaces - 1
        cna = {
            0x100C: lines << 29 | code << 7 | code << 4,
            0x1010: (height + 1) << 4,
            0x1014: 9,
            0x1020: width << 16 | height,
            0x1024: (k - 1) << 16 & 0x3FFF0000 | k,
            0x1028: width,
            0x102C: width * height,
            0x1030: kernel * n,
            0x1034: kernel,
            0x1038: 0x01010000 | n,
            0x1040: self.reuse | (BANKS - data) << 4 | data,
            0x1044: self.entries(),
            0x104C: 0xB,
            **dict.fromkeys((0x1050, 0x1054, 0x1058, 0x105C), 0x10000),
            **dict.fromkeys((0x1060, 0x1064, 0x1068), 0),
            0x1070: self.a,
            0x1074: 0,
            0x1078: 0x000F000F,
            0x107C: line,
            0x1080: surface & 0x0FFFFFFF,
            0x1084: width << 16 | height,
            0x1088: k,
            0x1100: 0,
            0x1104: 0,
            0x1110: self.b,
            **dict.fromkeys(range(0x1140, 0x1180, 4), 0),
            0x1180: 0,
            0x1184: 0,
        }
        core = {
            0x3010: code << 8 | (out_type != np.int32),
            0x3014: (height - 1) << 16 | (width - 1),
            0x3018: n - 1,
            0x301C: 0,
            0x3030: 0,
        }
        dpu = {
            0x400C: 0x1E4,
            0x4010: data_format,
            0x4014: 0,
            0x4020: self.c,
            0x4024: pitch,
            0x4030: ow - 1,
            0x4034: oh - 1,
            0x4038: notch << 16 | notch,
            0x403C: (n - 1) << 16 | (n - 1),
            0x4040: 0x53,
            **dict.fromkeys((0x4044, 0x4048, 0x404C), 0),
            0x4050: size_e << 8 | size_e << 5 | size_e << 2 | 2,
            0x4054: 0,
            0x4058: n - 1,
            0x405C: (oh - 1) << 16 | (ow - 1),
            0x4060: 0x53,
            **dict.fromkeys((0x4064, 0x4068, 0x406C), 0),
            0x4070: 0x383,
            0x4074: 0,
            0x4078: 1,
            0x407C: 0,
            0x4080: 0,
            0x4084: scale,
            0x4088: 0,
            **dict.fromkeys(range(0x4090, 0x40B0, 4), 0),
            0x40C0: pitch * surfaces,
            0x40C4: 0,
            **dict.fromkeys(range(0x4100, 0x4130, 4), 0),
        }
        rdma = {
            0x500C: ow - 1,
            0x5010: oh - 1,
            0x5014: n - 1,
            **dict.fromkeys((0x5018, 0x501C, 0x5020, 0x5028, 0x502C), 0),
            0x5034: 1,
            0x5038: 0,
            0x5040: 0,
            0x5044: 0x7810,
            0x5048: 0,
            0x504C: 0,
            0x5064: 0,
            0x5068: 0x01010101,
            0x506C: 0,
        }
        full = self.enable == FULL
        body = [(DPU, 0x4004, 0xE)] + [(RDMA, 0x5004, 0xE)] * full
        for target, table in ((CNA, cna), (CORE, core), (DPU, dpu), (RDMA, rdma if full else {})):
            body += [(target, offset, value) for offset, value in table.items()]
        return [(t, o, self.changes.get(o, v)) for t, o, v in body]


@dataclass(frozen=True)
class Addition:
    """The flying int32 addition of happyme531: C = A + B, both native, [channels/4][rows][4]."""

    rows: int
    channels: int
    a: int = 0
    b: int = 0
    c: int = 0
    to: int = 4  # code of the output type: that of int32, or 5 for float32

    enable = FLYING

    def registers(self):
        last, pitch, row = self.channels - 1, self.rows * 16, self.rows - 1
        zeros = dict.fromkeys
        dpu = {
            0x4004: 0xE, 0x400C: 0x1E5, 0x4010: self.to << 29 | 4 << 26 | 4, 0x4014: 0,
            0x4020: self.c, 0x4024: pitch, 0x4030: row, 0x4034: 0, 0x4038: 0,
            0x403C: last << 16 | last, 0x4040: 0x53, **zeros((0x4044, 0x4048, 0x404C), 0),
            0x4050: 2, 0x4054: 0, 0x4058: last, 0x405C: row, 0x4060: 0x53,
            **zeros((0x4064, 0x4068, 0x406C), 0), 0x4070: 0x10C203C0, 0x4074: 0, 0x4078: 1,
            0x407C: 0, 0x4080: 0, 0x4084: 1, 0x4088: 0, **zeros(range(0x4090, 0x40B0, 4), 0),
            0x40C0: pitch, 0x40C4: 0, **zeros(range(0x4100, 0x4130, 4), 0),
        }  # fmt: skip
        rdma = {
            0x5004: 0xE, 0x500C: row, 0x5010: 0, 0x5014: last, 0x5018: self.a,
            **zeros((0x501C, 0x5020, 0x5028, 0x502C), 0), 0x5034: 0x4000000C, 0x5038: self.b,
            0x5040: pitch, 0x5044: 0x27881, **zeros((0x5048, 0x504C, 0x5064), 0),
            0x5068: 0x01010101, 0x506C: 0,
        }  # fmt: skip
        return [(DPU, o, v) for o, v in dpu.items()] + [(RDMA, o, v) for o, v in rdma.items()]


def word(target, offset, value):
    return target << 48 | (value & 0xFFFFFFFF) << 16 | offset


def amount(words):
    """Return PC 0x14 for a list of *words* words: the number of 128-bit beats minus one."""
    return (words + 1) // 2 - 1


def encode(task, following=0, following_words=0):
    """Return the list of *task* as uint64; with *following*, its tail leads on to that address."""
    words = [word(*register) for register in task.registers()]
    words.append(word(PC, 0x10, following) if following else 0)
    words.append(word(PC, 0x14, amount(following_words) if following else 0))
    words += [MARKER, word(ENABLE, 8, task.enable)]
    return np.array(words, np.uint64)


# --- layouts ---------------------------------------------------------------------------------


def as_bytes(values, bits):
    """Return the bytes of *values*; a byte has two int4 values, the first in the low half."""
    if bits != 4:
        return np.ascontiguousarray(values).view(np.uint8).ravel()
    nibbles = np.ascontiguousarray(values).ravel().astype(np.uint8) & 0xF
    return nibbles[0::2] | nibbles[1::2] << 4


def pack_a(a, task):
    """Return the bytes of A ``[M, K]`` in the layout of the task's mode."""
    bits, (m, k) = task.type.bits, a.shape
    per_atom = ATOM * 8 // bits
    if task.mode == "row":
        return as_bytes(a, bits)
    p = int(task.mode[5:]) if task.mode.startswith("panel") else m
    return as_bytes(a.reshape(m // p, p, k // per_atom, per_atom).transpose(0, 2, 1, 3), bits)


def pack_b(b, task):
    """Return the bytes of B ``[N, K]``: groups of kernels, tiles of 1024 bytes."""
    t, (n, k) = task.type, b.shape
    tiles = b.reshape(n // t.group, t.group, k // t.tile, t.tile).transpose(0, 2, 1, 3)
    return as_bytes(tiles, t.bits)


def unpack_c(raw, task):
    """Return C ``[M, N]`` of the output bytes."""
    out_type = OUTPUTS[task.types][2]
    values, m, n = raw.view(out_type), task.m, task.columns or task.n
    per_atom = ATOM // task.out_bytes
    if task.mode == "row":
        return values[: m * n].reshape(m, n)
    p = int(task.mode[5:]) if task.mode.startswith("panel") else m
    cube = values[: m * n].reshape(m // p, n // per_atom, p, per_atom)
    return cube.transpose(0, 2, 1, 3).reshape(m, n)
