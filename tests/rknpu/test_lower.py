"""Test one task as words against foreign programs, published values and invariants."""

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import ALIGNMENT, link, single, stride, template
from npurt.rknpu.isa.regs import REG
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.tiling import plan, plan_weights
from tests.rknpu.fixtures import A, B, C, load, tasks, whole

FOREIGN = load("foreign_words.json")["programs"]
ROCKET_USERSPACE = "gregordinary/rocket-userspace"

# Values that published programs write in each layout for an int8 product of M=4, K=64, N=64:
# NATIVE-H mtx512/rk3588-npu; NATIVE-W and ROW happyme531/rknpu2_matmul_open.
WORKED = {
    #                        native-h     native-w      row
    "CNA_CONV_CON1":         (0,          0,            0x20000000),
    "CNA_CONV_CON2":         (0x50,       0x20,         0x50),
    "CNA_DATA_SIZE0":        (0x00010004, 0x00040001,   0x00010004),
    "CNA_FC_DATA_SIZE0":     (0x00010004, 0x00040001,   0x00010004),
    "CNA_DATA_SIZE1":        (0x003F0040, 0x003F0040,   0x003F0040),
    "CNA_DATA_SIZE2":        (1,          4,            1),
    "CNA_DATA_SIZE3":        (4,          4,            4),
    "CNA_WEIGHT_SIZE0":      (0x1000,     0x1000,       0x1000),
    "CNA_WEIGHT_SIZE1":      (0x40,       0x40,         0x40),
    "CNA_WEIGHT_SIZE2":      (0x01010040, 0x01010040,   0x01010040),
    "CNA_CBUF_CON0":         (0xB1,       0xB1,         0xB1),
    "CNA_CBUF_CON1":         (1,          4,            1),
    "CNA_DMA_CON1":          (4,          0x200,        4),
    "CNA_DMA_CON2":          (0,          0x0FFFFFF4,   0),
    "CORE_DATAOUT_SIZE_0":   (0x00030000, 0x00000003,   0x00030000),
    "DPU_DST_SURF_STRIDE":   (0x40,       0x40,         0x10),
    "DPU_DATA_CUBE_WIDTH":   (0,          3,            0),
    "DPU_DATA_CUBE_HEIGHT":  (3,          0,            3),
    "DPU_DATA_CUBE_NOTCH_ADDR": (0,       0,            0x000F000F),
    "DPU_DATA_CUBE_CHANNEL": (0x003F003F, 0x003F003F,   0x003F003F),
    "DPU_WDMA_SIZE_0":       (0x3F,       0x3F,         0x3F),
    "DPU_WDMA_SIZE_1":       (0x00030000, 0x00000003,   0x00030000),
    "DPU_SURFACE_ADD":       (0x200,      0x200,        0x80),
}  # fmt: skip

# The same values for larger products, by (layout, M, K, N, rows).
LARGER = {
    ("native-w", 1, 4096, 4096, 1): {
        "CNA_WEIGHT_SIZE0": 0x01000000, "CNA_WEIGHT_SIZE1": 0x1000, "CNA_WEIGHT_SIZE2": 0x01011000,
        "CNA_CBUF_CON0": 0xB1, "CNA_CBUF_CON1": 0x40, "CNA_DMA_CON2": 0x0FFFFFFD,
        "DPU_DST_SURF_STRIDE": 0x10, "DPU_SURFACE_ADD": 0x80,
    },
    ("row", 1, 4096, 4096, 1): {
        "CNA_DMA_CON1": 0x100, "CNA_DMA_CON2": 0, "DPU_DATA_CUBE_NOTCH_ADDR": 0x03FF03FF,
    },
    ("native-h", 128, 896, 128, 128): {
        "CNA_CBUF_CON0": 0x84, "CNA_CBUF_CON1": 14, "CNA_DMA_CON2": 0x7C,
    },
    ("row", 128, 896, 128, 128): {"CNA_CBUF_CON0": 0x84, "CNA_DMA_CON1": 0x38},
    ("native-w", 128, 64, 64, 200): {
        "CNA_CONV_CON1": 1 << 29, "CNA_DMA_CON1": 200, "CNA_DMA_CON2": 72,
        "DPU_DST_SURF_STRIDE": 200 * 16, "DPU_SURFACE_ADD": 200 * 128,
    },
    ("native-w", 72, 64, 64, 200): {"CNA_DMA_CON2": 128},
}  # fmt: skip


def values_of(words):
    """Return the final value of each register after a program."""
    return {regcmd.describe(word).name: regcmd.decode(word).value for word in words}


def differences(ours, theirs):
    return {
        regcmd.describe(theirs_word).name
        for ours_word, theirs_word in zip(ours, theirs, strict=True)
        if ours_word != theirs_word
    }


@pytest.mark.parametrize(
    ("project", "function", "format", "shape", "foreign"),
    FOREIGN,
    ids=[f"{p.partition('/')[0]}-{f}-{s}" for p, _, f, s, _ in FOREIGN],
)
def test_native_h_equals_programs_that_ran_on_silicon(project, function, format, shape, foreign):
    profile = Profile.FULL if project.startswith(ROCKET_USERSPACE) else Profile.SHORT
    ours = single(whole(format, "native-h", *shape), A, B, C, profile)

    # rocket-userspace reserves one bank more than int8 features need.
    slack = (
        {"CNA_CBUF_CON0"} if function == "gen_matmul_int8" and profile is Profile.FULL else set()
    )
    assert differences(ours, [int(word, 16) for word in foreign]) == slack


@pytest.mark.parametrize(("column", "layout"), list(enumerate(["native-h", "native-w", "row"])))
def test_published_values_of_the_three_layouts(column, layout):
    values = values_of(single(whole("int8", layout, 4, 64, 64), A, B, C))

    assert {name: values[name] for name in WORKED} == {n: v[column] for n, v in WORKED.items()}


@pytest.mark.parametrize(("shape", "published"), LARGER.items(), ids=map(str, LARGER))
def test_published_values_of_larger_tasks(shape, published):
    layout, m, k, n, rows = shape
    task = Task(whole("int8", "row", 1, 32, 32).format, Layout(layout), m, k, n, rows, k)

    values = values_of(single(task, A, B, C))

    assert {name: values[name] for name in published} == published


@given(tasks(), st.sampled_from(Profile))
def test_every_register_is_written_once_and_no_reserved_bit_is_set(task, profile):
    words = single(task, A, B, C, profile)
    lines = [regcmd.describe(word) for word in words]
    names = [line.name for line in lines[:-4]]

    assert names == [register.name for register in profile.order]
    assert len(set(names)) == len(names) == {Profile.FULL: 122, Profile.SHORT: 104}[profile]
    assert not any(line.reserved for line in lines)


@given(st.lists(tasks(), min_size=1, max_size=4), st.sampled_from(Profile), st.booleans())
def test_a_program_is_its_tasks_at_their_addresses(parts, profile, chained):
    addresses = [[A + 64 * i, B + 16 * i, C + 4096 * i] for i in range(len(parts))]
    at = 0x40_0000

    words = link(parts, addresses, profile=profile, chain_at=at if chained else None)

    assert words.shape == (len(parts), stride(profile))
    assert stride(profile) * 8 % ALIGNMENT == 0
    for i, (row, task) in enumerate(zip(words.tolist(), parts, strict=True)):
        lone = single(task, *addresses[i], profile)
        body = len(lone) - regcmd.TAIL
        assert row[:body] == lone[:body]
        assert row[len(lone) :] == [0] * (stride(profile) - len(lone))
        assert row[body + 2 : len(lone)] == lone[-2:]
        link_address, link_amount = map(regcmd.decode, row[body : body + 2])
        if chained and i + 1 < len(parts):
            assert link_address.value == at + 8 * stride(profile) * (i + 1)
            assert link_amount.value == regcmd.amount(profile.words)
        else:
            assert row[body : body + 2] == lone[body : body + 2]


@pytest.mark.parametrize("spoil", [8, -16, 1 << 32])
@pytest.mark.parametrize(
    ("column", "name"),
    [(0, "CNA_FEATURE_DATA_ADDR"), (1, "CNA_DCOMP_ADDR0"), (2, "DPU_DST_BASE_ADDR")],
)
def test_an_address_that_the_npu_cannot_take_is_refused(spoil, column, name):
    places = [[A, B, C], [A, B, C]]
    places[1][column] = spoil

    with pytest.raises(LayoutError, match=name):
        link([whole("int8", "row", 4, 64, 64)] * 2, places)


def test_a_template_is_not_spoilt_by_the_programs_made_from_it():
    task = whole("int8", "row", 4, 64, 64)
    before = single(task, A, B, C)
    link([task], [[0xFFFF_FFF0] * 3])[:] = 0

    assert single(task, A, B, C) == before
    with pytest.raises(ValueError, match="read-only"):
        template(task, Profile.FULL)[0] = 0


def test_the_main_reader_of_dpu_rdma_is_always_off():
    """Without mrdma_disable, the started block waits for ever."""
    register = REG["DPU_RDMA_FEATURE_MODE_CFG"]
    values = values_of(single(whole("fp16-fp16", "row", 4, 64, 64), A, B, C))

    assert register.decode(values[register.name])["mrdma_disable"] == 1


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ({"m": 5}, "is larger than A, 4 x "),
        ({"k": 96}, "is larger than A, 4 x 64"),
        ({"n": 48}, "pad N to 64"),
        ({"columns": 80}, "K of A = 80"),
        ({"m": 2, "layout": Layout.NATIVE_H}, "use native-w"),
        ({"layout": Layout.PANEL8}, "panels of 8"),
    ],
)
def test_a_task_that_cannot_be_is_refused(size, says):
    whole_task = whole("int8", "row", 4, 64, 64)
    good = {name: getattr(whole_task, name) for name in Task.__dataclass_fields__}

    with pytest.raises(LayoutError, match=says):
        Task(**good | size)


def test_programs_of_many_shapes_are_the_words_that_they_always_were():
    """The checksum is from commit 076c944, before the code moved; change it only on purpose."""
    digest = hashlib.sha256()
    shapes = itertools.product(FORMATS.values(), (1, 5, 33), (64, 2080, 4864), (96, 1024))
    for (format, m, k, n), layout in itertools.product(shapes, (Layout.ROW, Layout.NATIVE_W)):
        for tiles in plan(plan_weights(format, n, k), m, layout).tiles:
            addresses = [(A + tile.a, 0x4000_0000 + tile.b, 0x8000_0000 + tile.c) for tile in tiles]
            for profile, at in itertools.product(Profile, (None, 0x2000)):
                tasks = [tile.task for tile in tiles]
                digest.update(link(tasks, addresses, profile=profile, chain_at=at).tobytes())

    assert digest.hexdigest() == "e8a17587eecc736f436bb4d96ba6a2d90491fb871bd07e662925ac0e98e4d3bd"
