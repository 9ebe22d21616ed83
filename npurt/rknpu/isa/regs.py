"""The registers that command words can write, as a table; values are checked against their fields.

Source of names, offsets and fields: Mesa src/gallium/drivers/rocket/registers.xml (MIT).  [?] marks
facts from other sources.  mtx512/rk3588-npu and librknnrt write 0 to 3030 and 40C4.  Their programs
need a signed surface stride.  MARK and ENABLE are the last two words of every program of Mesa and
of the vendor.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from npurt.errors import LayoutError

# [BLOCK target]; then offset, name, fields as "name high:low".
_TABLE = """
[NOP 0000] filler; target 0001 has the same effect
0000 -

[PC 0101] command fetch; words write 0010 and 0014 to chain tasks, the CPU writes the rest
0000 VERSION            version 31:0
0004 VERSION_NUM        version_num 31:0
0008 OPERATION_ENABLE   op_en 0
0010 BASE_ADDRESS       pc_sel 0, pc_source_addr 31:4
0014 REGISTER_AMOUNTS   pc_data_amount 15:0
0020 INTERRUPT_MASK     cna_feature_0 0, cna_feature_1 1, cna_weight_0 2, cna_weight_1 3,
                        cna_csc_0 4, cna_csc_1 5, core_0 6, core_1 7, dpu_0 8, dpu_1 9, ppu_0 10,
                        ppu_1 11, dma_read_error 12, dma_write_error 13
0024 INTERRUPT_CLEAR    = INTERRUPT_MASK
0028 INTERRUPT_STATUS   = INTERRUPT_MASK
002C INTERRUPT_RAW_STATUS = INTERRUPT_MASK
0030 TASK_CON           task_number 11:0, task_pp_en 12, task_count_clear 13
0034 TASK_DMA_BASE_ADDR dma_base_addr 31:4
003C TASK_STATUS        task_status 27:0

[CNA 0201] feature and weight fetch, CBUF, convolution sequencer
1000 S_STATUS           status_0 1:0, status_1 17:16
1004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
1008 OPERATION_ENABLE   op_en 0
100C CONV_CON1          conv_mode 3:0, in_precision 6:4, proc_precision 9:7, argb_in 15:12,
                        deconv 16, group_line_off 29, nonalign_dma 30
1010 CONV_CON2          cmd_fifo_srst 0, csc_do_en 1, csc_wo_en 2, feature_grains 13:4,
                        kernel_group 23:16
1014 CONV_CON3          conv_x_stride 2:0, conv_y_stride 5:3, deconv_x_stride 10:8,
                        deconv_y_stride 13:11, atrous_x_dilation 20:16, atrous_y_dilation 25:21,
                        nn_mode 30:28
1020 DATA_SIZE0         datain_height 10:0, datain_width 26:16
1024 DATA_SIZE1         datain_channel 15:0, datain_channel_real 29:16
1028 DATA_SIZE2         dataout_width 10:0
102C DATA_SIZE3         dataout_atomics 21:0, surf_mode 23:22
1030 WEIGHT_SIZE0       weight_bytes 31:0
1034 WEIGHT_SIZE1       weight_bytes_per_kernel 18:0
1038 WEIGHT_SIZE2       weight_kernels 13:0, weight_height 20:16, weight_width 28:24
1040 CBUF_CON0          data_bank 3:0, weight_bank 7:4, fc_data_bank 10:8, data_reuse 12,
                        weight_reuse 13
1044 CBUF_CON1          data_entries 13:0
104C CVT_CON0           cvt_bypass 0, cvt_type 1, round_type 2, data_sign 3, cvt_truncate_0 9:4,
                        cvt_truncate_1 15:10, cvt_truncate_2 21:16, cvt_truncate_3 27:22
1050 CVT_CON1           cvt_offset0 15:0, cvt_scale0 31:16
1054 CVT_CON2           cvt_offset1 15:0, cvt_scale1 31:16
1058 CVT_CON3           cvt_offset2 15:0, cvt_scale2 31:16
105C CVT_CON4           cvt_offset3 15:0, cvt_scale3 31:16
1060 FC_CON0            fc_skip_en 0, fc_skip_data 31:16
1064 FC_CON1            data_offset 16:0
1068 PAD_CON0           pad_top 3:0, pad_left 7:4
1070 FEATURE_DATA_ADDR  feature_base_addr 31:0
1074 FC_CON2            weight_offset 16:0
1078 DMA_CON0           data_burst_len 3:0, weight_burst_len 19:16, ov4k_bypass 31
107C DMA_CON1           line_stride 27:0
1080 DMA_CON2           surf_stride 27:0 signed
1084 FC_DATA_SIZE0      dma_height 10:0, dma_width 29:16
1088 FC_DATA_SIZE1      dma_channel 15:0
1090 CLK_GATE           cna_feature_disable_clkgate 0, cna_weight_disable_clkgate 1,
                        csc_disable_clkgate 2, cbuf_cs_disable_clkgate 4
1100 DCOMP_CTRL         decomp_control 2:0, wt_dec_bypass 3
1104 DCOMP_REGNUM       dcomp_regnum 31:0
1110 DCOMP_ADDR0        decompress_addr0 31:0
1140 DCOMP_AMOUNT0      dcomp_amount0 31:0
1144 DCOMP_AMOUNT1      dcomp_amount1 31:0
1148 DCOMP_AMOUNT2      dcomp_amount2 31:0
114C DCOMP_AMOUNT3      dcomp_amount3 31:0
1150 DCOMP_AMOUNT4      dcomp_amount4 31:0
1154 DCOMP_AMOUNT5      dcomp_amount5 31:0
1158 DCOMP_AMOUNT6      dcomp_amount6 31:0
115C DCOMP_AMOUNT7      dcomp_amount7 31:0
1160 DCOMP_AMOUNT8      dcomp_amount8 31:0
1164 DCOMP_AMOUNT9      dcomp_amount9 31:0
1168 DCOMP_AMOUNT10     dcomp_amount10 31:0
116C DCOMP_AMOUNT11     dcomp_amount11 31:0
1170 DCOMP_AMOUNT12     dcomp_amount12 31:0
1174 DCOMP_AMOUNT13     dcomp_amount13 31:0
1178 DCOMP_AMOUNT14     dcomp_amount14 31:0
117C DCOMP_AMOUNT15     dcomp_amount15 31:0
1180 CVT_CON5           per_channel_cvt_en 31:0
1184 PAD_CON1           pad_value 31:0

[CORE 0801] MAC array and accumulator
3000 S_STATUS           status_0 1:0, status_1 17:16
3004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
3008 OPERATION_ENABLE   op_en 0
300C MAC_GATING         slcg_op_en 26:0
3010 MISC_CFG           qd_en 0, dw_en 1, proc_precision 10:8, soft_gating 19:14
3014 DATAOUT_SIZE_0     dataout_width 15:0, dataout_height 31:16
3018 DATAOUT_SIZE_1     dataout_channel 15:0
301C CLIP_TRUNCATE      clip_truncate 4:0, round_type 6
3030 UNKNOWN_3030

[DPU 1001] post-processing (bias, batch norm, element-wise, conversion) and write DMA
4000 S_STATUS           status_0 1:0, status_1 17:16
4004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
4008 OPERATION_ENABLE   op_en 0
400C FEATURE_MODE_CFG   flying_mode 0, output_mode 2:1, conv_mode 4:3, burst_len 8:5,
                        surf_len 24:9, nonalign 25, rgp_type 29:26, tp_en 30, comb_use 31
4010 DATA_FORMAT        proc_precision 2:0, mc_surf_out 3, bs_mul_shift_value_neg 9:4,
                        bn_mul_shift_value_neg 15:10, ew_truncate_neg 25:16, in_precision 28:26,
                        out_precision 31:29
4014 OFFSET_PEND        offset_pend 15:0
4020 DST_BASE_ADDR      dst_base_addr 31:0
4024 DST_SURF_STRIDE    dst_surf_stride 31:4
4030 DATA_CUBE_WIDTH    width 12:0
4034 DATA_CUBE_HEIGHT   height 12:0, minmax_ctl 24:22
4038 DATA_CUBE_NOTCH_ADDR notch_addr_0 12:0, notch_addr_1 28:16
403C DATA_CUBE_CHANNEL  channel 12:0, orig_channel 28:16
4040 BS_CFG             bs_bypass 0, bs_alu_bypass 1, bs_mul_bypass 4, bs_mul_prelu 5,
                        bs_relu_bypass 6, bs_relux_en 7, bs_alu_src 8, bs_alu_algo 19:16
4044 BS_ALU_CFG         bs_alu_operand 31:0
4048 BS_MUL_CFG         bs_mul_src 0, bs_truncate_src 1, bs_mul_shift_value 13:8,
                        bs_mul_operand 31:16
404C BS_RELUX_CMP_VALUE bs_relux_cmp_dat 31:0
4050 BS_OW_CFG          ow_src 0, od_bypass 1, size_e_0 4:2, size_e_1 7:5, size_e_2 10:8,
                        tp_org_en 27, rgp_cnter 31:28
4054 BS_OW_OP           ow_op 15:0
4058 WDMA_SIZE_0        channel_wdma 12:0, size_c_wdma 26:16, tp_precision 27
405C WDMA_SIZE_1        width_wdma 12:0, height_wdma 28:16
4060 BN_CFG             bn_bypass 0, bn_alu_bypass 1, bn_mul_bypass 4, bn_mul_prelu 5,
                        bn_relu_bypass 6, bn_relux_en 7, bn_alu_src 8, bn_alu_algo 19:16
4064 BN_ALU_CFG         bn_alu_operand 31:0
4068 BN_MUL_CFG         bn_mul_src 0, bn_truncate_src 1, bn_mul_shift_value 13:8,
                        bn_mul_operand 31:16
406C BN_RELUX_CMP_VALUE bn_relux_cmp_dat 31:0
4070 EW_CFG             ew_bypass 0, ew_op_bypass 1, ew_op_type 2, ew_mul_prelu 5, ew_op_src 6,
                        ew_lut_bypass 7, ew_op_cvt_bypass 8, ew_relu_bypass 9, ew_relux_en 10,
                        ew_alu_algo 19:16, ew_binary_en 20, ew_equal_en 21, edata_size 23:22,
                        ew_data_mode 29:28, ew_cvt_round 30, ew_cvt_type 31
4074 EW_CVT_OFFSET_VALUE ew_op_cvt_offset 31:0
4078 EW_CVT_SCALE_VALUE ew_op_cvt_scale 15:0, ew_op_cvt_shift 21:16, ew_truncate 31:22
407C EW_RELUX_CMP_VALUE ew_relux_cmp_dat 31:0
4080 OUT_CVT_OFFSET     out_cvt_offset 31:0
4084 OUT_CVT_SCALE      out_cvt_scale 15:0, fp32tofp16_en 16
4088 OUT_CVT_SHIFT      out_cvt_shift 11:0, minus_exp 19:12, cvt_round 30, cvt_type 31
4090 EW_OP_VALUE_0      ew_operand_0 31:0
4094 EW_OP_VALUE_1      ew_operand_1 31:0
4098 EW_OP_VALUE_2      ew_operand_2 31:0
409C EW_OP_VALUE_3      ew_operand_3 31:0
40A0 EW_OP_VALUE_4      ew_operand_4 31:0
40A4 EW_OP_VALUE_5      ew_operand_5 31:0
40A8 EW_OP_VALUE_6      ew_operand_6 31:0
40AC EW_OP_VALUE_7      ew_operand_7 31:0
40C0 SURFACE_ADD        surf_add 31:4
40C4 UNKNOWN_40C4
4100 LUT_ACCESS_CFG     lut_addr 9:0, lut_table_id 16, lut_access_type 17
4104 LUT_ACCESS_DATA    lut_access_data 15:0
4108 LUT_CFG            lut_road_sel 0, lut_expand_en 1, lut_lo_le_mux 3:2, lut_uflow_priority 4,
                        lut_oflow_priority 5, lut_hybrid_priority 6, lut_cal_sel 7
410C LUT_INFO           lut_le_index_select 15:8, lut_lo_index_select 23:16
4110 LUT_LE_START       lut_le_start 31:0
4114 LUT_LE_END         lut_le_end 31:0
4118 LUT_LO_START       lut_lo_start 31:0
411C LUT_LO_END         lut_lo_end 31:0
4120 LUT_LE_SLOPE_SCALE lut_le_slope_uflow_scale 15:0, lut_le_slope_oflow_scale 31:16
4124 LUT_LE_SLOPE_SHIFT lut_le_slope_uflow_shift 4:0, lut_le_slope_oflow_shift 9:5
4128 LUT_LO_SLOPE_SCALE lut_lo_slope_uflow_scale 15:0, lut_lo_slope_oflow_scale 31:16
412C LUT_LO_SLOPE_SHIFT lut_lo_slope_uflow_shift 4:0, lut_lo_slope_oflow_shift 9:5

[DPU_RDMA 2001] operand reads for the DPU
5000 S_STATUS           status_0 1:0, status_1 17:16
5004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
5008 OPERATION_ENABLE   op_en 0
500C DATA_CUBE_WIDTH    width 12:0
5010 DATA_CUBE_HEIGHT   height 12:0, ew_line_notch_addr 28:16
5014 DATA_CUBE_CHANNEL  channel 12:0
5018 SRC_BASE_ADDR      src_base_addr 31:0
501C BRDMA_CFG          brdma_data_use 4:1
5020 BS_BASE_ADDR       bs_base_addr 31:0
5028 NRDMA_CFG          nrdma_data_use 4:1
502C BN_BASE_ADDR       bn_base_addr 31:0
5034 ERDMA_CFG          erdma_disable 0, ov4k_bypass 1, erdma_data_size 3:2, erdma_nonalign 28,
                        erdma_surf_mode 29, erdma_data_mode 31:30
5038 EW_BASE_ADDR       ew_base_addr 31:0
5040 EW_SURF_STRIDE     ew_surf_stride 31:4
5044 FEATURE_MODE_CFG   flying_mode 0, conv_mode 2:1, mrdma_fp16tofp32_en 3, mrdma_disable 4,
                        proc_precision 7:5, comb_use 10:8, burst_len 14:11, in_precision 17:15
5048 SRC_DMA_CFG        kernel_width 2:0, kernel_height 5:3, kernel_stride_width 8:6,
                        kernel_stride_height 11:9, unpooling_en 12, pooling_method 13,
                        line_notch_addr 31:19
504C SURF_NOTCH         surf_notch_addr 31:4
5064 PAD_CFG            pad_left 2:0, pad_top 6:4, pad_value 31:16
5068 WEIGHT             m_weight 7:0, b_weight 15:8, n_weight 23:16, e_weight 31:24
506C EW_SURF_NOTCH      ew_surf_notch 31:4

[PPU 4001] pooling
6000 S_STATUS           status_0 1:0, status_1 17:16
6004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
6008 OPERATION_ENABLE   op_en 0
600C DATA_CUBE_IN_WIDTH cube_in_width 12:0
6010 DATA_CUBE_IN_HEIGHT cube_in_height 12:0
6014 DATA_CUBE_IN_CHANNEL cube_in_channel 12:0
6018 DATA_CUBE_OUT_WIDTH cube_out_width 12:0
601C DATA_CUBE_OUT_HEIGHT cube_out_height 12:0
6020 DATA_CUBE_OUT_CHANNEL cube_out_channel 12:0
6024 OPERATION_MODE_CFG pooling_method 1:0, flying_mode 4, use_cnt 7:5, notch_addr 28:16,
                        index_en 30
6034 POOLING_KERNEL_CFG kernel_width 3:0, kernel_height 11:8, kernel_stride_width 19:16,
                        kernel_stride_height 23:20
6038 RECIP_KERNEL_WIDTH recip_kernel_width 16:0
603C RECIP_KERNEL_HEIGHT recip_kernel_height 16:0
6040 POOLING_PADDING_CFG pad_left 2:0, pad_top 6:4, pad_right 10:8, pad_bottom 14:12
6044 PADDING_VALUE_1_CFG pad_value_0 31:0
6048 PADDING_VALUE_2_CFG pad_value_1 2:0
6070 DST_BASE_ADDR      dst_base_addr 31:4
607C DST_SURF_STRIDE    dst_surf_stride 31:4
6084 DATA_FORMAT        proc_precision 2:0, dpu_flyin 3, index_add 31:4
60DC MISC_CTRL          burst_len 3:0, nonalign 7, mc_surf_out 8, surf_len 31:16

[PPU_RDMA 8001] operand reads for the PPU
7000 S_STATUS           status_0 1:0, status_1 17:16
7004 S_POINTER          pointer 0, pointer_pp_en 1, executer_pp_en 2, pointer_pp_mode 3,
                        pointer_pp_clear 4, executer_pp_clear 5, executer 16
7008 OPERATION_ENABLE   op_en 0
700C CUBE_IN_WIDTH      cube_in_width 12:0
7010 CUBE_IN_HEIGHT     cube_in_height 12:0
7014 CUBE_IN_CHANNEL    cube_in_channel 12:0
701C SRC_BASE_ADDR      src_base_addr 31:0
7024 SRC_LINE_STRIDE    src_line_stride 31:4
7028 SRC_SURF_STRIDE    src_surf_stride 31:4
7030 DATA_FORMAT        in_precision 1:0

[MARK 0041] the word before ENABLE in every program [?]
0000 -

[ENABLE 0081] starts the blocks; the last word of a program
0008 -                  cna 0, core 2, dpu 3, dpu_rdma 4, ppu 5, ppu_rdma 6
"""


class Field(NamedTuple):
    """Bits *hi* to *lo* of a register."""

    hi: int
    lo: int
    signed: bool = False

    @property
    def width(self) -> int:
        """Number of bits."""
        return self.hi - self.lo + 1

    @property
    def mask(self) -> int:
        """The bits that belong to the field."""
        return ((1 << self.width) - 1) << self.lo

    def extract(self, value: int) -> int:
        """Return the field's value in the register value *value*."""
        bits = (value & self.mask) >> self.lo
        return bits - (1 << self.width) if self.signed and bits >> (self.width - 1) else bits


@dataclass(frozen=True, slots=True)
class RegWrite:
    """The content of a command word: a register and the value that the word writes to it."""

    target: int  # the block, as in the table
    offset: int
    value: int


class Reg:
    """A 32-bit register.  A call with field values returns the write that sets them."""

    def __init__(self, target: int, offset: int, name: str, fields: dict[str, Field]) -> None:
        self.target = target
        self.offset = offset
        self.name = name
        self.fields = MappingProxyType(fields)
        self.known = 0  # bits that belong to a field
        for field_name, field in fields.items():
            if self.known & field.mask or not 0 <= field.lo <= field.hi < 32:
                raise AssertionError(f"{name}.{field_name} overlaps another field or does not fit")
            self.known |= field.mask

    def __call__(self, **values: int) -> RegWrite:
        """Return the write that sets the fields *values*, and all other fields to 0.

        Raises:
            LayoutError: The register has no such field, or a value does not fit.
        """
        word = 0
        for name, value in values.items():
            word |= self._place(name, value)
        return RegWrite(self.target, self.offset, word)

    def _place(self, name: str, value: int) -> int:
        field = self.fields.get(name)
        if field is None:
            raise LayoutError(
                f"{self.name} has no field {name!r}", remedy=f"it has {', '.join(self.fields)}"
            )
        minimum = -(1 << (field.width - 1)) if field.signed else 0
        if not minimum <= value < minimum + (1 << field.width):
            raise LayoutError(
                f"{self.name}.{name} = {value} does not fit in {field.width} bits",
                remedy="use a smaller tile, or an address below 4 GiB",
            )
        return (value << field.lo) & field.mask

    def decode(self, value: int) -> dict[str, int]:
        """Return every field of a register value; the inverse of calling the register."""
        return {name: field.extract(value) for name, field in self.fields.items()}

    def reserved(self, value: int) -> int:
        """Return the bits of *value* that belong to no field: 0 in a valid program."""
        return value & ~self.known


def _parse(table: str) -> Iterator[Reg]:
    """Yield the registers of *table*, in order."""
    fields: dict[str, dict[str, Field]] = {}  # register parsed so far -> its fields
    joined = re.sub(r"\n {2,}", " ", table)
    for line in joined.splitlines():
        if line.startswith("["):
            block, target = line[1 : line.index("]")].split()
        elif line:
            offset, short, *text = line.split(maxsplit=2)
            name = block if short == "-" else f"{block}_{short}"
            fields[name] = _fields(block, text[0], fields) if text else {}
            yield Reg(int(target, 16), int(offset, 16), name, fields[name])


def _fields(block: str, text: str, others: dict[str, dict[str, Field]]) -> dict[str, Field]:
    """Parse a list of fields, or ``= REGISTER``, which means the fields of another register."""
    if text.startswith("= "):
        return others[f"{block}_{text[2:]}"]
    return dict(map(_field, text.split(", ")))


def _field(text: str) -> tuple[str, Field]:
    """Parse a field: ``name 5``, ``name 7:4`` or ``name 7:4 signed``."""
    name, bits, *signed = text.split()
    hi, _, lo = bits.partition(":")
    return name, Field(int(hi), int(lo or hi), bool(signed))


REGISTERS = tuple(_parse(_TABLE))
REG = MappingProxyType({reg.name: reg for reg in REGISTERS})
_BY_PLACE = {(reg.target, reg.offset): reg for reg in REGISTERS}


def find(target: int, offset: int) -> Reg | None:
    """Return the register that a word with this target and offset writes, or None."""
    return _BY_PLACE.get((target, offset))
