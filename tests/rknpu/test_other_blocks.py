"""Test programs of blocks that npurt does not use: the table names them, the proof refuses them."""

import numpy as np
import pytest

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd, regs
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import stride
from npurt.rknpu.plan.proof import BufferSpan, Role, prove
from tests.sim_rknpu.alone import Lut, Pooling, activation
from tests.sim_rknpu.programs import PRODUCT_NAMES, Convolution, operand, requantise

A, B, C, AT = 0x100_0000, 0x200_0000, 0x300_0000, 0x40_0000
SPANS = [
    BufferSpan(AT, AT + 0x1_0000, Role.PROGRAM, "program"),
    BufferSpan(A, A + 0x1_0000, Role.INPUT, "A"),
    BufferSpan(B, B + 0x1_0000, Role.INPUT, "B"),
    BufferSpan(C, C + 0x1_0000, Role.OUTPUT, "C"),
]
LUT = Lut(np.arange(513), np.arange(513), 2596, 0.0, 1, 15, 23107, 22)


def convolution(*shape, stages=None, **fields):
    return Convolution(*shape, stages=stages or {}, **fields).words(A, B, C)


HALVES = {"types": ("fp16", "fp16")}
PRODUCTS = {
    "windows": convolution(32, 8, 8, 32, (3, 3), pad=(1, 1, 1, 1), types=("int8", "int32")),
    "strides": convolution(32, 8, 8, 32, stride=(2, 2), types=("int8", "int32")),
    "depthwise": convolution(32, 8, 8, 32, (3, 3), depthwise=True),
    "requantised": convolution(
        32, 8, 8, 32, types=("int8", "int8"), stages=requantise(B, 128, 1 << 14, 22, 128)
    ),
    "an operand": convolution(32, 16, 1, 16, stages=operand("add", B, 16), **HALVES),
    "a LUT": convolution(32, 16, 1, 16, stages=LUT.fields(), **HALVES),
    "a scale": convolution(
        32, 8, 1, 32, types=("int8", "fp32"), stages={"DPU_OUT_CVT_SCALE": {"out_cvt_scale": 3}}
    ),
}
PROGRAMS = {
    **PRODUCTS,
    "a LUT behind a product": LUT.load(PRODUCTS["a LUT"]),
    "a LUT alone": activation(LUT, 4, A, C),
    "pooling": Pooling("max", 16, 8, 8, (2, 2), (2, 2)).words(A, C),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_word_is_a_known_register_without_reserved_bits(name):
    lines = [regcmd.describe(int(word)) for word in PROGRAMS[name]]

    assert not [line for line in lines if line.reserved or line.name.startswith("unknown")]
    for word in PROGRAMS[name].tolist():
        assert regcmd.encode(regcmd.decode(word)) == word
    assert regcmd.parse(PROGRAMS[name].tobytes()) == PROGRAMS[name].tolist()


def test_a_listing_names_what_a_pooling_and_a_lut_are_told():
    text = "\n".join(str(regcmd.describe(int(word))) for word in PROGRAMS["pooling"])
    assert "PPU_POOLING_KERNEL_CFG" in text
    assert "kernel_width=1 kernel_height=1 kernel_stride_width=1" in text
    assert text.endswith("ppu=1 ppu_rdma=1")
    text = "\n".join(str(regcmd.describe(int(word))) for word in PROGRAMS["a LUT alone"])
    assert text.count("DPU_LUT_ACCESS_DATA") == 2 * 513
    assert "lut_table_id=1 lut_access_type=1" in text


def test_these_programs_write_what_npurt_writes_in_its_order():
    """The next tests need this: with these registers, the proof can refuse only the stage."""
    assert [register.name for register in Profile.FULL.order] == PRODUCT_NAMES


def proved(words):
    whole = np.zeros((1, stride(Profile.FULL)), np.uint64)
    whole[0, : len(words)] = words
    return prove(whole, SPANS, at=AT, chained=False)


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_proof_lets_no_stage_pass(name):
    with pytest.raises(LayoutError, match=r"task 0 of the program: (CNA|CORE|DPU)_"):
        proved(PRODUCTS[name])


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - set(PRODUCTS)))
def test_the_proof_lets_no_program_of_other_length_pass(name):
    words = PROGRAMS[name]
    with pytest.raises(LayoutError):
        prove(words.reshape(1, -1), SPANS, at=AT, chained=False)


def test_each_register_of_each_block_is_in_the_table():
    for target, offsets in {0x4001: (0x600C, 0x60DC), 0x8001: (0x700C, 0x7030)}.items():
        assert all(regs.find(target, offset) for offset in offsets)
