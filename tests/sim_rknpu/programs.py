"""Programs of blocks other than plain products, written with npurt's encoder, and numpy oracles.

A program has the fields that its public generator writes (rocket-userspace, Mesa).  An oracle
computes from plain arrays; only `pack_*` and `unpack` have the layout of cubes in memory.
"""

from dataclasses import dataclass, field

import numpy as np

from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.regs import REG, REGISTERS

ATOM = 16  # bytes of a pixel of a surface
PING_PONG = {"pointer_pp_en": 1, "executer_pp_en": 1, "pointer_pp_mode": 1}
NAMES = [register.name for register in REGISTERS]


def up(value, multiple):
    return -(-value // multiple) * multiple


def between(first, last, *without):
    """Return the names of registers from *first* to *last* in the order of the table."""
    names = NAMES[NAMES.index(first) : NAMES.index(last) + 1]
    return [name for name in names if name not in without]


def words(fields, names, **enable):
    """Return the program that writes *names*, from *fields* or as zero, and starts blocks."""
    unknown = set(fields) - set(names)
    assert not unknown, unknown
    writes = []
    for name in names:
        given = fields.get(name, {})
        writes += [REG[name](**each) for each in (given if isinstance(given, list) else [given])]
    tail = regcmd.tail(REG["ENABLE"](**enable))
    return np.array([regcmd.encode(write) for write in [*writes, *tail]], np.uint64)


PRODUCT_NAMES = [
    "DPU_S_POINTER",
    "DPU_RDMA_S_POINTER",
    *between("CNA_CONV_CON1", "CNA_PAD_CON1", "CNA_CLK_GATE"),
    *between("CORE_MISC_CFG", "CORE_UNKNOWN_3030"),
    *between("DPU_FEATURE_MODE_CFG", "DPU_LUT_LO_SLOPE_SHIFT"),
    *between("DPU_RDMA_DATA_CUBE_WIDTH", "DPU_RDMA_EW_SURF_NOTCH"),
]
CODES = {"int8": 0, "fp16": 2, "int32": 4, "fp32": 5}
BYTES = {"int8": 1, "fp16": 2, "int32": 4, "fp32": 4}
DTYPES = {"int8": np.int8, "fp16": np.float16, "int32": np.int32, "fp32": np.float32}
BYPASS = {"bypass", "alu_bypass", "mul_bypass", "relu_bypass"}


def bypass(stage):
    return {f"{stage}_{part}": 1 for part in BYPASS}


# --- cubes -----------------------------------------------------------------------------------


def pack_cube(x, dtype):
    """Return the bytes of a cube ``[channels][height][width]``: surfaces of 16 bytes per pixel."""
    per_atom = ATOM // np.dtype(dtype).itemsize
    channels, height, width = x.shape
    padded = np.zeros((up(channels, per_atom), height, width), dtype)
    padded[:channels] = x
    cube = padded.reshape(-1, per_atom, height, width).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(cube).view(np.uint8).ravel()


def unpack_cube(raw, dtype, channels, height, width):
    """Return the cube ``[channels][height][width]`` from its bytes."""
    per_atom = ATOM // np.dtype(dtype).itemsize
    surfaces = up(channels, per_atom) // per_atom
    values = raw.view(dtype)[: surfaces * per_atom * height * width]
    cube = values.reshape(surfaces, height, width, per_atom).transpose(0, 3, 1, 2)
    return cube.reshape(-1, height, width)[:channels]


# --- convolutions ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Convolution:
    """A convolution, [oc][ic][kh][kw] over [ic][ih][iw], or a depthwise one, [ic][kh][kw]."""

    ic: int
    ih: int
    iw: int
    oc: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    dilation: tuple[int, int] = (1, 1)
    types: tuple[str, str] = ("fp16", "fp32")
    depthwise: bool = False
    stages: dict = field(default_factory=dict)  # register -> fields, instead of the usual

    @property
    def group(self):
        return {"int8": 32, "fp16": 16}[self.types[0]] << self.depthwise

    @property
    def out_shape(self):
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        top, bottom, left, right = self.pad
        height = (self.ih + top + bottom - reach[0]) // self.stride[0] + 1
        width = (self.iw + left + right - reach[1]) // self.stride[1] + 1
        return height, width

    @property
    def k(self):
        """Return the number of channels in memory."""
        return up(self.ic, 16 if self.types[1] == "int8" else 32)

    @property
    def n(self):
        """Return the number of output channels, with padding."""
        return up(self.ic if self.depthwise else self.oc, self.group)

    def windows(self, x, beside=0):
        """Return the window of *x* for each output, ``[ic][kh][kw][oh][ow]``."""
        (sy, sx), (dy, dx), (top, bottom, left, right) = self.stride, self.dilation, self.pad
        beside = np.broadcast_to(np.asarray(beside, x.dtype), len(x))
        padded = np.stack([
            np.pad(plane, ((top, bottom), (left, right)), constant_values=value)
            for plane, value in zip(x, beside, strict=True)
        ])  # fmt: skip
        height, width = self.out_shape
        return np.array([
            [[c[i * dy :, j * dx :][: height * sy : sy, : width * sx : sx]
              for j in range(self.kernel[1])] for i in range(self.kernel[0])] for c in padded
        ])  # fmt: skip

    def sums(self, x, w, beside=0):
        """Return the exact sums ``[oc][oh][ow]``, in int64 or float64."""
        wide = np.int64 if self.types[0] == "int8" else np.float64
        seen = self.windows(x.astype(wide), beside)
        if self.depthwise:
            return np.einsum("cijyx,cij->cyx", seen, w.astype(wide))
        return np.einsum("cijyx,ocij->oyx", seen, w.astype(wide))

    def pack_weights(self, w):
        """Return the bytes of the kernels, as Mesa and rocket-userspace order them."""
        dtype, (kh, kw) = DTYPES[self.types[0]], self.kernel
        parts = []
        if self.depthwise:
            for first in range(0, self.k, self.group):
                group = np.zeros((min(self.group, self.k - first), kh, kw), dtype)
                there = w[first : first + len(group)]
                group[: len(there)] = there
                parts.append(group.transpose(1, 2, 0))
        else:
            kernels = self.oc if self.types[1] == "int8" else self.n
            padded = np.zeros((kernels, self.k, kh, kw), dtype)
            padded[: len(w), : w.shape[1]] = w
            for first in range(0, kernels, self.group):
                for tile in range(0, self.k, 32):
                    part = padded[first : first + self.group, tile : tile + 32]
                    parts.append(part.transpose(2, 3, 0, 1))
        return np.concatenate([np.ascontiguousarray(p).view(np.uint8).ravel() for p in parts])

    def fields(self, x, w, out):
        """Return the fields of all registers, with addresses of features, kernels, output."""
        (height, width), (kh, kw), code = self.out_shape, self.kernel, CODES[self.types[0]]
        size = BYTES[self.types[0]]
        kernel_size, pixels, n, mode = kh * kw, height * width, self.n, 3 * self.depthwise
        to_int8 = self.types[1] == "int8"
        kernels = 1 if self.depthwise else self.oc if to_int8 else n
        atoms = self.k * size // ATOM
        rest = {0: 0, 3: self.iw}.get(atoms % 4, -(-(atoms % 4) * self.iw // 4))
        entries = atoms // 4 * self.iw + rest
        data_bank = -(-self.ih * entries * 64 // 32768)
        size_e = self.group * BYTES[self.types[1]] // ATOM - 1
        real = self.ic if self.depthwise else self.oc
        cube = {"datain_width": self.iw, "datain_height": self.ih}
        fields = {
            "DPU_S_POINTER": PING_PONG,
            "DPU_RDMA_S_POINTER": PING_PONG,
            "CNA_CONV_CON1": {"in_precision": code, "proc_precision": code, "conv_mode": mode},
            "CNA_CONV_CON2": {"feature_grains": self.ih + 1},
            "CNA_CONV_CON3": {
                "conv_x_stride": self.stride[1],
                "conv_y_stride": self.stride[0],
                "atrous_x_dilation": self.dilation[1] - 1,
                "atrous_y_dilation": self.dilation[0] - 1,
            },
            "CNA_DATA_SIZE0": cube,
            "CNA_DATA_SIZE1": {"datain_channel": self.k, "datain_channel_real": self.ic - 1},
            "CNA_DATA_SIZE2": {"dataout_width": width},
            "CNA_DATA_SIZE3": {"dataout_atomics": pixels},
            "CNA_WEIGHT_SIZE0": {"weight_bytes": self.k * kernel_size * size * kernels},
            "CNA_WEIGHT_SIZE1": {"weight_bytes_per_kernel": self.k * kernel_size * size},
            "CNA_WEIGHT_SIZE2": {
                "weight_width": kw, "weight_height": kh, "weight_kernels": kernels
            },
            "CNA_CBUF_CON0": {"data_bank": data_bank, "weight_bank": 12 - data_bank},
            "CNA_CBUF_CON1": {"data_entries": entries},
            "CNA_CVT_CON0": {"cvt_bypass": 1, "cvt_type": 1, "data_sign": 1},
            **{f"CNA_CVT_CON{i + 1}": {f"cvt_scale{i}": 1} for i in range(4)},
            "CNA_PAD_CON0": {"pad_top": self.pad[0], "pad_left": self.pad[2]},
            "CNA_FEATURE_DATA_ADDR": {"feature_base_addr": x},
            "CNA_DMA_CON0": {"data_burst_len": 15, "weight_burst_len": 15},
            "CNA_DMA_CON1": {"line_stride": 4 * self.iw},
            "CNA_DMA_CON2": {"surf_stride": self.iw * (self.ih - 4)},
            "CNA_FC_DATA_SIZE0": {"dma_width": self.iw, "dma_height": self.ih},
            "CNA_FC_DATA_SIZE1": {"dma_channel": self.k},
            "CNA_DCOMP_ADDR0": {"decompress_addr0": w},
            "CORE_MISC_CFG": {"proc_precision": code, "qd_en": 1, "dw_en": int(self.depthwise)},
            "CORE_DATAOUT_SIZE_0": {"dataout_width": width - 1, "dataout_height": height - 1},
            "CORE_DATAOUT_SIZE_1": {"dataout_channel": n - 1},
            "DPU_FEATURE_MODE_CFG": {"burst_len": 15, "output_mode": 2, "conv_mode": mode},
            "DPU_DATA_FORMAT": {
                "in_precision": code,
                "proc_precision": code,
                "out_precision": CODES[self.types[1]],
            },
            "DPU_DST_BASE_ADDR": {"dst_base_addr": out},
            "DPU_DST_SURF_STRIDE": {"dst_surf_stride": pixels},
            "DPU_DATA_CUBE_WIDTH": {"width": width - 1},
            "DPU_DATA_CUBE_HEIGHT": {"height": height - 1},
            "DPU_DATA_CUBE_CHANNEL": {
                "channel": n - 1, "orig_channel": (real if to_int8 else n) - 1
            },
            "DPU_BS_CFG": bypass("bs"),
            "DPU_BS_OW_CFG": {
                "od_bypass": int(not (to_int8 or self.depthwise)),
                **{f"size_e_{i}": size_e for i in range(3)},
            },
            "DPU_BS_OW_OP": {"ow_op": 0x80 * self.depthwise},
            "DPU_WDMA_SIZE_0": {"channel_wdma": n - 1},
            "DPU_WDMA_SIZE_1": {"width_wdma": width - 1, "height_wdma": height - 1},
            "DPU_BN_CFG": bypass("bn"),
            "DPU_EW_CFG": {
                f"ew_{part}bypass": 1 for part in ("", "op_", "lut_", "op_cvt_", "relu_")
            },
            "DPU_EW_CVT_SCALE_VALUE": {"ew_op_cvt_scale": 1},
            "DPU_OUT_CVT_SCALE": {
                "out_cvt_scale": 1, "fp32tofp16_en": int(self.types[1] == "fp16")
            },
            "DPU_SURFACE_ADD": {"surf_add": pixels * (size_e + 1)},
            "DPU_RDMA_DATA_CUBE_WIDTH": {"width": width - 1},
            "DPU_RDMA_DATA_CUBE_HEIGHT": {"height": height - 1},
            "DPU_RDMA_DATA_CUBE_CHANNEL": {"channel": n - 1},
            "DPU_RDMA_ERDMA_CFG": {"erdma_disable": 1},
            "DPU_RDMA_FEATURE_MODE_CFG": {
                "burst_len": 15, "mrdma_disable": 1, "conv_mode": mode
            },
            "DPU_RDMA_WEIGHT": dict.fromkeys(("m_weight", "b_weight", "n_weight", "e_weight"), 1),
        }  # fmt: skip
        return fields | self.stages

    def words(self, x, w, out):
        names = list(PRODUCT_NAMES)
        return words(self.fields(x, w, out), names, cna=1, core=1, dpu=1, dpu_rdma=1)


# --- stages of the DPU -----------------------------------------------------------------------

COMBINATIONS = {  # fields of DPU_EW_CFG beside the common ones: rocket-userspace, npu_dpu.h
    "add": {"ew_alu_algo": 2},
    "max": {"ew_alu_algo": 0},
    "min": {"ew_alu_algo": 1},
    "mul": {"ew_op_type": 1, "ew_op_cvt_bypass": 1},
}


def operand(which, address, pixels):
    """Return the stages that combine each float16 of a product with one of an equal cube."""
    apart = {"surf": pixels}
    return {
        "DPU_EW_CFG": {
            "ew_data_mode": 1, "edata_size": 2, "ew_relu_bypass": 1, "ew_lut_bypass": 1,
            "ew_op_src": 1, **COMBINATIONS[which],
        },
        "DPU_RDMA_SRC_BASE_ADDR": {"src_base_addr": address},
        "DPU_RDMA_ERDMA_CFG": {"erdma_data_mode": 1, "erdma_data_size": 2},
        "DPU_RDMA_EW_BASE_ADDR": {"ew_base_addr": address + ATOM * pixels},
        "DPU_RDMA_EW_SURF_STRIDE": {"ew_surf_stride": apart["surf"]},
        "DPU_RDMA_FEATURE_MODE_CFG": {
            "burst_len": 15, "comb_use": 5, "in_precision": 2, "proc_precision": 2
        },
        "DPU_RDMA_SURF_NOTCH": {"surf_notch_addr": apart["surf"]},
        "DPU_RDMA_EW_SURF_NOTCH": {"ew_surf_notch": apart["surf"]},
    }  # fmt: skip


def requantise(biases, weight_zero, scale, shift, out_zero, pad=(0, 0)):
    """Return the stages of Mesa's convolutions; zero points are those of uint8."""
    return {
        "CNA_PAD_CON1": {"pad_value": pad[0] & 0xFF | (pad[1] & 0xFF) << 8},
        "DPU_BS_CFG": {"bs_alu_algo": 2, "bs_alu_src": 1, "bs_relu_bypass": 1, "bs_mul_bypass": 1},
        "DPU_BS_OW_OP": {"ow_op": 0x80 - weight_zero & 0xFFFF},
        "DPU_OUT_CVT_OFFSET": {"out_cvt_offset": out_zero - 0x80 & 0xFFFFFFFF},
        "DPU_OUT_CVT_SCALE": {"out_cvt_scale": scale},
        "DPU_OUT_CVT_SHIFT": {"out_cvt_shift": shift},
        "DPU_RDMA_BRDMA_CFG": {"brdma_data_use": 1},
        "DPU_RDMA_BS_BASE_ADDR": {"bs_base_addr": biases},
    }
