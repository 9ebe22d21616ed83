"""Translate a task to register writes, a program that runs under both drivers.

Every task writes every register that a matmul depends on, because registers keep their values from
the last program of any process.  Order and constants are from mtx512/rk3588-npu (SHORT) and
gregordinary/rocket-userspace (FULL), which ran on silicon.
"""

from enum import Enum

from npurt.rknpu.isa import cbuf, regcmd
from npurt.rknpu.isa.formats import INT4, INT8, NumberFormat
from npurt.rknpu.isa.regs import REG, REGISTERS, Reg, RegWrite
from npurt.rknpu.isa.task import Task

Fields = dict[str, dict[str, int]]  # register -> field -> value

PING_PONG = {"pointer_pp_en": 1, "executer_pp_en": 1, "pointer_pp_mode": 1}
BURST = 15


class Profile(Enum):
    """The blocks that a program starts."""

    FULL = "full"  # with DPU_RDMA, whose main reader is disabled: runs under both drivers
    SHORT = "short"  # without DPU_RDMA: known to run only under the vendor's driver

    @property
    def enable(self) -> RegWrite:
        """The last word of a program, a write of ENABLE."""
        return REG["ENABLE"](cna=1, core=1, dpu=1, dpu_rdma=int(self is Profile.FULL))

    @property
    def order(self) -> tuple[Reg, ...]:
        """The registers that a task writes, in order."""
        return _ORDER[self]

    @property
    def words(self) -> int:
        """Number of words of a task, tail included."""
        return len(self.order) + regcmd.TAIL


def _between(first: str, last: str) -> tuple[Reg, ...]:
    names = list(REG)
    return REGISTERS[names.index(first) : names.index(last) + 1]


_SHORT = (
    REG["DPU_S_POINTER"],
    *_between("CNA_CONV_CON1", "CNA_FC_DATA_SIZE1"),
    *_between("CNA_DCOMP_CTRL", "CNA_PAD_CON1"),  # without CLK_GATE
    *_between("CORE_MISC_CFG", "CORE_UNKNOWN_3030"),
    *_between("DPU_FEATURE_MODE_CFG", "DPU_LUT_LO_SLOPE_SHIFT"),
)
_RDMA = _between("DPU_RDMA_DATA_CUBE_WIDTH", "DPU_RDMA_EW_SURF_NOTCH")
_ORDER = {
    Profile.SHORT: _SHORT,
    Profile.FULL: (_SHORT[0], REG["DPU_RDMA_S_POINTER"], *_SHORT[1:], *_RDMA),
}


def fields(task: Task) -> Fields:
    """Return the nonzero fields of a task's registers, except the addresses.

    Raises:
        LayoutError: The task does not fit CBUF.
    """
    return _cna(task) | _core(task) | _dpu(task) | _rdma(task)


def _cna(task: Task) -> Fields:
    format, a = task.format, task.features
    data_bank, weight_bank = cbuf.split(format, task.k, a.width, a.height)
    return {
        "CNA_CONV_CON1": {
            "in_precision": format.code,
            "proc_precision": format.code,
            "group_line_off": int(a.by_line),
        },
        # With fewer grains some shapes are faster, and others, such as K = 3840, are wrong [?].
        "CNA_CONV_CON2": {"feature_grains": a.height + 1},
        "CNA_CONV_CON3": {"conv_x_stride": 1, "conv_y_stride": 1},
        "CNA_DATA_SIZE0": {"datain_width": a.width, "datain_height": a.height},
        "CNA_DATA_SIZE1": {"datain_channel": task.k, "datain_channel_real": task.k - 1},
        "CNA_DATA_SIZE2": {"dataout_width": a.width},
        "CNA_DATA_SIZE3": {"dataout_atomics": task.m},
        "CNA_WEIGHT_SIZE0": {"weight_bytes": task.weight_bytes},
        "CNA_WEIGHT_SIZE1": {"weight_bytes_per_kernel": format.in_bytes(task.k)},
        "CNA_WEIGHT_SIZE2": {"weight_width": 1, "weight_height": 1, "weight_kernels": task.n},
        "CNA_CBUF_CON0": {"data_bank": data_bank, "weight_bank": weight_bank},
        "CNA_CBUF_CON1": {"data_entries": cbuf.entries(format, task.k, a.width)},
        "CNA_CVT_CON0": {"cvt_bypass": 1, "cvt_type": 1, "data_sign": 1},
        **{f"CNA_CVT_CON{i + 1}": {f"cvt_scale{i}": 1} for i in range(4)},
        "CNA_DMA_CON0": {"data_burst_len": BURST, "weight_burst_len": BURST},
        "CNA_DMA_CON1": {"line_stride": a.line_stride},
        "CNA_DMA_CON2": {"surf_stride": a.surf_stride},
        "CNA_FC_DATA_SIZE0": {"dma_width": a.width, "dma_height": a.height},
        "CNA_FC_DATA_SIZE1": {"dma_channel": task.k},
    }


def _core(task: Task) -> Fields:
    a = task.features
    return {
        # qd_en has no effect on raw results: programs with both values ran [?].
        "CORE_MISC_CFG": {
            "proc_precision": task.format.code,
            "qd_en": int(task.format.code not in (INT8, INT4)),
        },
        "CORE_DATAOUT_SIZE_0": {"dataout_width": a.width - 1, "dataout_height": a.height - 1},
        "CORE_DATAOUT_SIZE_1": {"dataout_channel": task.n - 1},
    }


def _dpu(task: Task) -> Fields:
    format, c = task.format, task.results
    size_e = format.surfaces - 1
    return {
        "DPU_S_POINTER": PING_PONG,
        "DPU_FEATURE_MODE_CFG": {"burst_len": BURST, "output_mode": 2},
        "DPU_DATA_FORMAT": {
            "out_precision": format.out_code,
            "in_precision": format.dpu_code,
            "proc_precision": format.dpu_code,
        },
        "DPU_DST_SURF_STRIDE": {"dst_surf_stride": c.surf_stride},
        "DPU_DATA_CUBE_WIDTH": {"width": c.width - 1},
        "DPU_DATA_CUBE_HEIGHT": {"height": c.height - 1},
        "DPU_DATA_CUBE_NOTCH_ADDR": {"notch_addr_0": c.notch, "notch_addr_1": c.notch},
        "DPU_DATA_CUBE_CHANNEL": {"channel": task.n - 1, "orig_channel": task.n - 1},
        "DPU_BS_CFG": _bypass("bs"),
        "DPU_BS_OW_CFG": {
            "od_bypass": 1,
            "size_e_0": size_e,
            "size_e_1": size_e,
            "size_e_2": size_e,
        },
        "DPU_WDMA_SIZE_0": {"channel_wdma": task.n - 1},
        "DPU_WDMA_SIZE_1": {"width_wdma": c.width - 1, "height_wdma": c.height - 1},
        "DPU_BN_CFG": _bypass("bn"),
        "DPU_EW_CFG": {
            "ew_bypass": 1,
            "ew_op_bypass": 1,
            "ew_lut_bypass": 1,
            "ew_op_cvt_bypass": 1,
            "ew_relu_bypass": 1,
        },
        "DPU_EW_CVT_SCALE_VALUE": {"ew_op_cvt_scale": 1},
        "DPU_OUT_CVT_SCALE": {"out_cvt_scale": 1, "fp32tofp16_en": int(_halves(format))},
        "DPU_SURFACE_ADD": {"surf_add": c.surf_add},
    }


def _bypass(stage: str) -> dict[str, int]:
    return {f"{stage}_{part}bypass": 1 for part in ("", "alu_", "mul_", "relu_")}


def _halves(format: NumberFormat) -> bool:
    """Return whether the DPU rounds float32 results to float16."""
    return format.out == "float16"


def _rdma(task: Task) -> Fields:
    c = task.results
    return {
        "DPU_RDMA_S_POINTER": PING_PONG,
        "DPU_RDMA_DATA_CUBE_WIDTH": {"width": c.width - 1},
        "DPU_RDMA_DATA_CUBE_HEIGHT": {"height": c.height - 1},
        "DPU_RDMA_DATA_CUBE_CHANNEL": {"channel": task.n - 1},
        "DPU_RDMA_ERDMA_CFG": {"erdma_disable": 1},
        # Without mrdma_disable DPU_RDMA waits for ever, possibly until the driver is loaded again
        # [gregordinary/rockchip-npu-notes].
        "DPU_RDMA_FEATURE_MODE_CFG": {
            "burst_len": BURST,
            "mrdma_disable": 1,
            "mrdma_fp16tofp32_en": int(_halves(task.format)),
        },
        "DPU_RDMA_WEIGHT": {"m_weight": 1, "b_weight": 1, "n_weight": 1, "e_weight": 1},
    }
