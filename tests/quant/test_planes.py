import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npurt.quant import planes

# Every (width, bits) that a GGUF type uses.
SHAPES = ((16, 4), (32, 4), (64, 4), (4, 4), (8, 4), (1, 4), (32, 2), (4, 2), (32, 1), (1, 1))


@given(st.sampled_from(SHAPES), st.integers(1, 3), st.data())
def test_join_undoes_split_for_any_bytes(shape, groups, data):
    width, bits = shape
    raw = data.draw(st.binary(min_size=width * groups, max_size=width * groups))
    packed = np.frombuffer(raw, np.uint8)

    codes = planes.split(packed, width, bits)

    assert codes.size * bits == packed.size * 8
    assert codes.max() < 1 << bits
    np.testing.assert_array_equal(planes.join(codes, width, bits), packed)


def test_nibbles_of_a_group_come_low_half_first():
    packed = np.array([0x21, 0x43, 0x65, 0x87], np.uint8)  # two groups of two bytes

    assert planes.split(packed, 2, 4).tolist() == [1, 3, 2, 4, 5, 7, 6, 8]


def test_a_field_of_structured_blocks_is_split_as_its_bytes_are():
    blocks = np.zeros((3, 2), np.dtype([("d", "<f2"), ("qs", "u1", 4)]))
    blocks["qs"] = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)

    codes = planes.split(blocks["qs"], 4, 2)

    np.testing.assert_array_equal(planes.join(codes, 4, 2), blocks["qs"])
    assert codes[2, 1].tolist() == [0, 1, 2, 3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
