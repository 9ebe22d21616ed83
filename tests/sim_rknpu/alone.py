"""Programs of the LUT and of pooling, which need no product, and numpy oracles; see programs.py."""

from dataclasses import dataclass, field

import numpy as np

from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.regs import REG
from tests.sim_rknpu.programs import ATOM, PING_PONG, between, bypass, words


@dataclass(frozen=True)
class Lut:
    """Two tables and what leads to them and from them."""

    negative: np.ndarray  # [513]
    positive: np.ndarray
    scale: float  # of float16
    bias: float  # of float32
    offset: int
    minus_exponent: int
    slope: int = 0
    slope_shift: int = 0

    def fields(self):
        """Return the stages BN, LUT and OUT_CVT."""
        scale = int(np.float16(self.scale).view(np.uint16))
        table = {"lut_access_type": 1}
        return {
            "DPU_BN_CFG": {"bn_alu_algo": 2, "bn_relu_bypass": 1},
            "DPU_BN_ALU_CFG": {"bn_alu_operand": int(np.float32(self.bias).view(np.uint32))},
            "DPU_BN_MUL_CFG": {"bn_mul_operand": scale},
            "DPU_EW_CFG": {"ew_relu_bypass": 1, "ew_op_cvt_bypass": 1},
            "DPU_OUT_CVT_OFFSET": {"out_cvt_offset": self.offset & 0xFFFFFFFF},
            "DPU_OUT_CVT_SCALE": {"out_cvt_scale": 1, "fp32tofp16_en": 1},
            "DPU_OUT_CVT_SHIFT": {"cvt_type": 1, "minus_exp": self.minus_exponent},
            "DPU_LUT_ACCESS_CFG": table,  # and the tables, which `load` puts after it
            "DPU_LUT_CFG": {"lut_hybrid_priority": 1, "lut_oflow_priority": 1, "lut_lo_le_mux": 2},
            "DPU_LUT_INFO": {"lut_le_index_select": 5, "lut_lo_index_select": 5},
            "DPU_LUT_LE_START": {"lut_le_start": -16384 & 0xFFFFFFFF},
            "DPU_LUT_LO_END": {"lut_lo_end": 16384},
            "DPU_LUT_LE_SLOPE_SCALE": {"lut_le_slope_uflow_scale": self.slope},
            "DPU_LUT_LE_SLOPE_SHIFT": {"lut_le_slope_uflow_shift": self.slope_shift},
        }

    def load(self, program):
        """Return *program* with the entries of both tables in it."""
        access, data = REG["DPU_LUT_ACCESS_CFG"], REG["DPU_LUT_ACCESS_DATA"]
        writes = []
        for table, entries in enumerate((self.negative, self.positive)):
            writes.append(access(lut_access_type=1, lut_table_id=table))
            writes += [data(lut_access_data=int(entry)) for entry in entries]
        ours = np.array([regcmd.encode(write) for write in writes], np.uint64)
        offsets = program & np.uint64(0xFFFF)
        (at,) = np.flatnonzero(offsets == np.uint64(access.offset))
        rest = program[at + 1 :][offsets[at + 1 :] != np.uint64(data.offset)]
        return np.concatenate([program[:at], ours, rest])

    def apply(self, x):
        """Return the LUT function of float32 *x*, as in notes on silicon; see lut.c."""
        with np.errstate(over="ignore"):
            scaled = (x * np.float32(np.float16(self.scale))).astype(np.float32)
            index = np.rint((scaled + np.float32(self.bias)).astype(np.float32)).astype(np.float64)
        below = np.floor((index + 16384) * self.slope / 2.0**self.slope_shift)
        inside = np.clip(index, -16384, 16383)
        entry = np.where(index < 0, self._between(self.negative, inside + 16384),
                         self._between(self.positive, inside))  # fmt: skip
        entry = np.where(index >= 16384, self.positive[512], entry)
        entry = np.where(index < -16384, np.maximum(self.negative[0] + below, 0), entry)
        total = entry + self.offset
        value = np.where(total == 0, 2.0**17, total) * 2.0**-self.minus_exponent
        return value.astype(np.float16)

    @staticmethod
    def _between(table, index):
        index = np.clip(index, 0, 16383).astype(np.int64)
        i, part = index // 32, index % 32
        return (
            table[i].astype(np.int64) * (32 - part) + table[i + 1].astype(np.int64) * part
        ) // 32


ACTIVATION_NAMES = [
    "DPU_S_POINTER", "DPU_RDMA_S_POINTER", "DPU_LUT_ACCESS_CFG",
    "DPU_FEATURE_MODE_CFG", "DPU_DATA_FORMAT", "DPU_DST_BASE_ADDR", "DPU_DST_SURF_STRIDE",
    "DPU_DATA_CUBE_WIDTH", "DPU_DATA_CUBE_HEIGHT", "DPU_DATA_CUBE_CHANNEL", "DPU_BS_CFG",
    "DPU_BS_OW_CFG", "DPU_WDMA_SIZE_0", "DPU_WDMA_SIZE_1", "DPU_BN_CFG", "DPU_BN_ALU_CFG",
    "DPU_BN_MUL_CFG", "DPU_EW_CFG", "DPU_EW_CVT_SCALE_VALUE", "DPU_OUT_CVT_OFFSET",
    "DPU_OUT_CVT_SCALE", "DPU_OUT_CVT_SHIFT", "DPU_SURFACE_ADD", "DPU_UNKNOWN_40C4",
    "DPU_LUT_CFG", "DPU_LUT_INFO", "DPU_LUT_LE_START", "DPU_LUT_LO_END",
    "DPU_LUT_LE_SLOPE_SCALE", "DPU_LUT_LE_SLOPE_SHIFT", "DPU_LUT_LO_SLOPE_SCALE",
    "DPU_LUT_LO_SLOPE_SHIFT", "DPU_RDMA_DATA_CUBE_WIDTH", "DPU_RDMA_DATA_CUBE_HEIGHT",
    "DPU_RDMA_DATA_CUBE_CHANNEL", "DPU_RDMA_SRC_BASE_ADDR", "DPU_RDMA_ERDMA_CFG",
    "DPU_RDMA_FEATURE_MODE_CFG", "DPU_RDMA_WEIGHT",
]  # fmt: skip


def activation(lut, columns, source, target, **changes):
    """Return the program of the LUT alone over *columns* of eight float16."""
    fields = {
        "DPU_S_POINTER": PING_PONG,
        "DPU_RDMA_S_POINTER": PING_PONG,
        **lut.fields(),
        "DPU_FEATURE_MODE_CFG": {"burst_len": 15, "output_mode": 2, "flying_mode": 1},
        "DPU_DATA_FORMAT": {"out_precision": 2, "in_precision": 2, "proc_precision": 2},
        "DPU_DST_BASE_ADDR": {"dst_base_addr": target},
        "DPU_DST_SURF_STRIDE": {"dst_surf_stride": columns},
        "DPU_DATA_CUBE_WIDTH": {"width": columns - 1},
        "DPU_DATA_CUBE_CHANNEL": {"channel": 7, "orig_channel": 7},
        "DPU_BS_CFG": bypass("bs"),
        "DPU_BS_OW_CFG": {"od_bypass": 1},
        "DPU_WDMA_SIZE_0": {"channel_wdma": 7},
        "DPU_WDMA_SIZE_1": {"width_wdma": columns - 1},
        "DPU_EW_CVT_SCALE_VALUE": {"ew_op_cvt_scale": 1},
        "DPU_SURFACE_ADD": {"surf_add": columns},
        "DPU_RDMA_DATA_CUBE_WIDTH": {"width": columns - 1},
        "DPU_RDMA_DATA_CUBE_CHANNEL": {"channel": 7},
        "DPU_RDMA_SRC_BASE_ADDR": {"src_base_addr": source},
        "DPU_RDMA_ERDMA_CFG": {"erdma_disable": 1},
        "DPU_RDMA_FEATURE_MODE_CFG": {
            "in_precision": 2, "burst_len": 15, "proc_precision": 2, "mrdma_fp16tofp32_en": 1,
            "flying_mode": 1,
        },
        "DPU_RDMA_WEIGHT": dict.fromkeys(("m_weight", "b_weight", "n_weight", "e_weight"), 1),
    }  # fmt: skip
    return lut.load(words(fields | changes, ACTIVATION_NAMES, dpu=1, dpu_rdma=1))


# --- pooling ---------------------------------------------------------------------------------

POOLING_NAMES = [
    *between("PPU_S_POINTER", "PPU_MISC_CTRL", "PPU_OPERATION_ENABLE"),
    *between("PPU_RDMA_S_POINTER", "PPU_RDMA_DATA_FORMAT", "PPU_RDMA_OPERATION_ENABLE"),
]


@dataclass(frozen=True)
class Pooling:
    """A pooling of float16 ``[channels][height][width]``."""

    method: str
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    changes: dict = field(default_factory=dict)

    @property
    def out_shape(self):
        top, bottom, left, right = self.pad
        height = (self.height + top + bottom - self.kernel[0]) // self.stride[0] + 1
        return height, (self.width + left + right - self.kernel[1]) // self.stride[1] + 1

    def reciprocal(self, axis):
        """Return the bits of float16(65536 / k), or 0 if there is no division."""
        if self.method != "mean":
            return 0
        return int(np.float16(65536 / self.kernel[axis]).view(np.uint16))

    def words(self, source, target):
        (height, width), (top, bottom, left, right) = self.out_shape, self.pad
        cube = (self.width - 1, self.height - 1, self.channels - 1)
        fields = {
            "PPU_S_POINTER": PING_PONG,
            "PPU_DATA_CUBE_IN_WIDTH": {"cube_in_width": cube[0]},
            "PPU_DATA_CUBE_IN_HEIGHT": {"cube_in_height": cube[1]},
            "PPU_DATA_CUBE_IN_CHANNEL": {"cube_in_channel": cube[2]},
            "PPU_DATA_CUBE_OUT_WIDTH": {"cube_out_width": width - 1},
            "PPU_DATA_CUBE_OUT_HEIGHT": {"cube_out_height": height - 1},
            "PPU_DATA_CUBE_OUT_CHANNEL": {"cube_out_channel": cube[2]},
            "PPU_OPERATION_MODE_CFG": {
                "flying_mode": 1, "pooling_method": ("mean", "max", "min").index(self.method)
            },
            "PPU_POOLING_KERNEL_CFG": {
                "kernel_width": self.kernel[1] - 1, "kernel_height": self.kernel[0] - 1,
                "kernel_stride_width": self.stride[1] - 1,
                "kernel_stride_height": self.stride[0] - 1,
            },
            "PPU_RECIP_KERNEL_WIDTH": {"recip_kernel_width": self.reciprocal(1)},
            "PPU_RECIP_KERNEL_HEIGHT": {"recip_kernel_height": self.reciprocal(0)},
            "PPU_POOLING_PADDING_CFG": {
                "pad_left": left, "pad_top": top, "pad_right": right, "pad_bottom": bottom
            },
            "PPU_PADDING_VALUE_1_CFG": {
                "pad_value_0": 0xFC00 * int(self.method == "max" and any(self.pad))
            },
            "PPU_DST_BASE_ADDR": {"dst_base_addr": target // ATOM},
            "PPU_DST_SURF_STRIDE": {"dst_surf_stride": height * width},
            "PPU_DATA_FORMAT": {"proc_precision": 2, "index_add": height * width},
            "PPU_MISC_CTRL": {"burst_len": 3},
            "PPU_RDMA_S_POINTER": PING_PONG,
            "PPU_RDMA_CUBE_IN_WIDTH": {"cube_in_width": cube[0]},
            "PPU_RDMA_CUBE_IN_HEIGHT": {"cube_in_height": cube[1]},
            "PPU_RDMA_CUBE_IN_CHANNEL": {"cube_in_channel": cube[2]},
            "PPU_RDMA_SRC_BASE_ADDR": {"src_base_addr": source},
            "PPU_RDMA_SRC_LINE_STRIDE": {"src_line_stride": self.width},
            "PPU_RDMA_SRC_SURF_STRIDE": {"src_surf_stride": self.width * self.height},
            "PPU_RDMA_DATA_FORMAT": {"in_precision": 2},
        }  # fmt: skip
        return words(fields | self.changes, POOLING_NAMES, ppu=1, ppu_rdma=1)

    def oracle(self, x):
        """Return the pooling of *x* in float64; maximum and minimum are exact."""
        beside = {"mean": 0, "max": -np.inf, "min": np.inf}[self.method]
        (top, bottom, left, right), (height, width) = self.pad, self.out_shape
        wide = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right)),
                      constant_values=beside)  # fmt: skip
        cells = [
            wide[:, i :, j:][:, : height * self.stride[0] : self.stride[0],
                            : width * self.stride[1] : self.stride[1]]
            for i in range(self.kernel[0]) for j in range(self.kernel[1])
        ]  # fmt: skip
        if self.method == "mean":
            shares = [float(np.uint16(self.reciprocal(a)).view(np.float16)) for a in (0, 1)]
            return sum(cells) * shares[0] * shares[1] * 2.0**-32
        return (np.max if self.method == "max" else np.min)(cells, axis=0)
