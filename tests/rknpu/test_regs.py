"""Test the register table, and the words built from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd, regs
from npurt.rknpu.isa.regs import REG, RegWrite
from tests.rknpu.fixtures import load

TARGETS = {  # [M] registers.xml, enum target; bit 0 is set, as in every published program
    "PC": 0x0101,
    "CNA": 0x0201,
    "CORE": 0x0801,
    "DPU": 0x1001,
    "DPU_RDMA": 0x2001,
    "PPU": 0x4001,
    "PPU_RDMA": 0x8001,
}


def limits(field):
    """Return the least and the greatest value of a field."""
    maximum = (1 << (field.width - field.signed)) - 1
    return (-maximum - 1 if field.signed else 0), maximum


def values(field):
    return st.integers(*limits(field))


register_values = st.sampled_from(regs.REGISTERS).flatmap(
    lambda reg: st.tuples(
        st.just(reg),
        st.fixed_dictionaries({name: values(field) for name, field in reg.fields.items()}),
    )
)


def test_the_table_says_what_mesa_says():
    """Registers, offsets and bits are the same; only npurt has the two undocumented registers."""
    mesa = {
        (TARGETS[block], offset): (f"{block}_{name.removeprefix('RDMA_')}", fields)
        for block, offset, name, fields in load("registers.json")["registers"]
    }
    ours = {
        (reg.target, reg.offset): (
            reg.name,
            {name.upper(): [field.hi, field.lo] for name, field in reg.fields.items()},
        )
        for reg in regs.REGISTERS
    }
    extra = {place: ours.pop(place) for place in list(ours) if place not in mesa}

    assert ours == mesa
    assert {name for name, _ in extra.values()} == {
        "NOP", "MARK", "ENABLE", "CORE_UNKNOWN_3030", "DPU_UNKNOWN_40C4"
    }  # fmt: skip


def test_names_are_unique():
    assert len(REG) == len(regs.REGISTERS)


@pytest.mark.parametrize("reg", regs.REGISTERS, ids=lambda reg: reg.name)
def test_every_field_holds_its_least_and_greatest_value(reg):
    for name, field in reg.fields.items():
        for value in limits(field):
            write = reg(**{name: value})
            others = dict.fromkeys(reg.fields, 0)
            assert reg.decode(write.value) == others | {name: value}
            assert write.value & ~field.mask == 0


@given(register_values)
def test_fields_round_trip_through_a_command_word(case):
    reg, fields = case

    write = regcmd.decode(regcmd.encode(reg(**fields)))

    assert (write.target, write.offset) == (reg.target, reg.offset)
    assert regs.find(write.target, write.offset) is reg
    assert reg.decode(write.value) == fields
    assert reg.reserved(write.value) == 0


@given(st.integers(0, (1 << 64) - 1))
def test_any_word_is_taken_apart_and_described_without_loss(word):
    write = regcmd.decode(word)

    assert write.target << 48 | write.value << 16 | write.offset == word
    assert regcmd.describe(word).word == word
    assert str(regcmd.describe(word)).startswith(f"{word:016x}")


@given(st.sampled_from([reg for reg in regs.REGISTERS if reg.fields]), st.data())
def test_a_value_that_does_not_fit_is_refused_with_its_name(reg, data):
    name, field = data.draw(st.sampled_from(sorted(reg.fields.items())))
    minimum, maximum = limits(field)

    for value in (maximum + 1, minimum - 1):
        with pytest.raises(LayoutError, match=f"{reg.name}.{name} = {value} does not fit"):
            reg(**{name: value})


def test_an_unknown_field_is_refused():
    with pytest.raises(LayoutError, match="CNA_CBUF_CON0 has no field 'banks'"):
        REG["CNA_CBUF_CON0"](banks=1)


@given(st.sampled_from([reg for reg in regs.REGISTERS if reg.known != 0xFFFF_FFFF]), st.data())
def test_reserved_bits_are_refused_and_shown(reg, data):
    free = [bit for bit in range(32) if not reg.known >> bit & 1]
    write = RegWrite(reg.target, reg.offset, 1 << data.draw(st.sampled_from(free)))

    with pytest.raises(LayoutError, match=f"{reg.name} = .* sets reserved bits {write.value:#x}"):
        regcmd.encode(write)
    line = regcmd.describe(write.target << 48 | write.value << 16 | write.offset)
    assert f"RESERVED BITS {write.value:#x}" in str(line)


@pytest.mark.parametrize(
    "write", [RegWrite(0x1_0000, 0, 0), RegWrite(1, 0x1_0000, 0), RegWrite(1, 0, 1 << 32)]
)
def test_a_part_that_does_not_fit_a_word_is_refused(write):
    with pytest.raises(LayoutError, match="does not fit in"):
        regcmd.encode(write)


def test_known_words():
    # Mesa rkt_regcmd.c: EMIT(REG_CNA_CBUF_CON0, WEIGHT_BANK(11) | DATA_BANK(1))
    assert regcmd.encode(REG["CNA_CBUF_CON0"](weight_bank=11, data_bank=1)) == 0x0201_0000_00B1_1040
    # mtx512/rk3588-npu: the surface stride of one row, and the last two words
    assert regcmd.encode(REG["CNA_DMA_CON2"](surf_stride=-3)) == 0x0201_0FFF_FFFD_1080
    assert regcmd.encode(REG["MARK"]()) == 0x0041_0000_0000_0000
    assert regcmd.encode(REG["ENABLE"](cna=1, core=1, dpu=1)) == 0x0081_0000_000D_0008
