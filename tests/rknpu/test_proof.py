"""Test the proof before a submit: it lists the accesses of good programs and refuses bad ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.errors import LayoutError
from npurt.rknpu.isa import regcmd
from npurt.rknpu.isa.layout import Layout
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.program import link, stride
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.proof import BufferSpan, Role, prove
from tests.rknpu.fixtures import A, B, C, load, tasks, whole

AT = 0x40_0000


def atoms_read(task):
    """Yield every atom of A that the CNA reads, by the address generator of Mesa and happyme531."""
    by = task.features
    surfaces = range(task.format.in_bytes(task.k) // 16)
    for h, w, s in itertools.product(range(by.height), range(by.width), surfaces):
        if by.by_line:
            yield h * by.line_stride + w + s * (by.width + by.surf_stride)
        else:
            line = h // 4 * by.line_stride + h % 4 * by.width
            yield line + w + s * (4 * by.width + by.surf_stride)


def atoms_written(task):
    """Yield every atom of C that the DPU writes, by Mesa's and happyme531's address generator."""
    by, group = task.results, task.format.surfaces
    surfaces = range(task.n * task.format.out_bytes // 16)
    for h, w, s in itertools.product(range(by.height), range(by.width), surfaces):
        yield h * (by.width + by.notch) + w + s % group * by.surf_stride + s // group * by.surf_add


def tight(task, a=A, b=B, c=C):
    """Return buffers that span exactly the task's accesses; only the program's is larger."""
    read, written = list(atoms_read(task)), list(atoms_written(task))
    return [
        BufferSpan(AT, AT + 0x1_0000, Role.PROGRAM, "program"),
        BufferSpan(a + 16 * min(read), a + 16 * max(read) + 16, Role.INPUT, "A"),
        BufferSpan(b, b + task.weight_bytes, Role.INPUT, "B"),
        BufferSpan(c + 16 * min(written), c + 16 * max(written) + 16, Role.OUTPUT, "C"),
    ]


def program(task, profile=Profile.FULL, **kwargs):
    return link([task], [[A, B, C]], profile=profile, **kwargs)


def set_word(words, name, value, task=0, profile=Profile.FULL):
    index = [register.name for register in profile.order].index(name)
    head = int(words[task, index]) & 0xFFFF_0000_0000_FFFF
    words[task, index] = head | value << 16


TASK = whole("int8", "row", 4, 64, 64)


@given(tasks(), st.sampled_from(Profile))
def test_a_good_program_passes_and_tells_exactly_what_it_touches(task, profile):
    spans = tight(task)

    proof = prove(program(task, profile), spans, at=AT, chained=False, profile=profile)

    assert proof.reads == {spans[1], spans[2]}
    assert proof.writes == {spans[3]}
    assert proof.results.tolist() == [[spans[3].start, spans[3].end]]


@given(tasks())
def test_one_atom_less_of_any_buffer_is_refused(task):
    for i, name in ((1, "CNA_FEATURE_DATA_ADDR"), (2, "CNA_DCOMP_ADDR0"), (3, "DPU_DST_BASE_ADDR")):
        for less in ({"end": tight(task)[i].end - 16}, {"start": tight(task)[i].start + 16}):
            spans = tight(task)
            spans[i] = spans[i]._replace(**less)
            with pytest.raises(LayoutError, match=name):
                prove(program(task), spans, at=AT, chained=False)


@given(tasks())
def test_atoms_are_written_once(task):
    written = list(atoms_written(task))

    assert len(set(written)) == len(written) == task.m * task.n * task.format.out_bytes // 16


@pytest.mark.parametrize("i", [0, 1, 2, 3])
def test_a_buffer_of_another_role_is_refused(i):
    for role in Role:
        spans = tight(TASK)
        good = role is spans[i].role
        spans[i] = spans[i]._replace(role=role)
        if good:
            prove(program(TASK), spans, at=AT, chained=False)
            continue
        with pytest.raises(LayoutError, match="a buffer for another use"):
            prove(program(TASK), spans, at=AT, chained=False)


@pytest.mark.parametrize("entry", load("foreign_words.json")["programs"], ids=lambda e: str(e[:3]))
def test_programs_of_others_that_ran_on_silicon_pass(entry):
    project, _, format, shape, foreign = entry
    profile = Profile.FULL if len(foreign) == 126 else Profile.SHORT
    words = np.zeros((1, stride(profile)), np.uint64)
    words[0, : len(foreign)] = [int(word, 16) for word in foreign]
    task = whole(format, "native-h", *shape)

    proof = prove(words, tight(task), at=AT, chained=False, profile=profile)

    assert proof.results.tolist() == [[C, C + task.m * task.n * task.format.out_bytes]], project


def bits(words):
    return [(i, bit) for i in range(words.shape[1]) for bit in range(64)]


def refused(words, spans):
    """Return the error message of the proof, or None if it accepts the program."""
    try:
        prove(words, spans, at=AT, chained=False)
    except LayoutError as error:
        return error.what
    return None


@pytest.mark.parametrize("layout", ["row", "native-w", "native-h"])
def test_any_bit_flipped_is_refused_but_where_it_changes_nothing(layout):
    """Only programs with spare banks, another result type or an unused stride are accepted."""
    task = whole("int8", layout, 64, 64, 64)
    good, spans = program(task), tight(task)
    passed = {}
    for i, bit in bits(good):
        words = good.copy()
        words[0, i] ^= np.uint64(1) << np.uint64(bit)
        name = regcmd.describe(int(good[0, i])).name
        if refused(words, spans) is None:
            passed[name] = passed.get(name, 0) + 1

    assert passed.pop("CNA_CBUF_CON0") <= 8
    assert passed.pop("DPU_DATA_FORMAT") == 1  # results in fp32 instead of int32
    # CNA_DMA_CON1 is the stride of lines, which is unused because there is one line.
    assert passed == ({"CNA_DMA_CON1": 28} if layout == "native-w" else {})


@pytest.mark.parametrize(
    ("register", "value", "says"),
    [
        ("CNA_CBUF_CON0", 0xB2, "too many banks"),
        ("CNA_CBUF_CON0", 0xC0, "too few banks for the features"),
        ("CNA_CBUF_CON0", 0x01, "too few banks for a group"),
        ("CNA_CBUF_CON0", 0x20B1, "bits 0x2000 wrong"),
        ("CNA_CBUF_CON1", 2, "is not the number of entries of a line"),
        ("CNA_FC_DATA_SIZE1", 0x41, "no whole K"),
        ("CNA_WEIGHT_SIZE2", 0x01010000, "no whole N"),
        ("CNA_WEIGHT_SIZE0", 0x1001, "disagrees"),
        ("CNA_DATA_SIZE0", 0, "is empty"),
        ("DPU_DATA_CUBE_HEIGHT", 1, "the number of rows read"),
        ("DPU_DATA_CUBE_NOTCH_ADDR", 0x000F000E, "two values"),
        ("CNA_DMA_CON1", 3, "twice"),
        ("CNA_DMA_CON2", 0x0FFF_FFFF, "twice"),
        ("DPU_SURFACE_ADD", 0, "the next group"),
        ("DPU_DST_BASE_ADDR", C + 8, "no multiple of 16"),
        ("DPU_RDMA_FEATURE_MODE_CFG", 0x7800, "bits 0x10 wrong"),
        ("DPU_DATA_FORMAT", 0, "no known number format"),
        ("CNA_DCOMP_CTRL", 1, "wrong for int8"),
        ("CNA_FEATURE_DATA_ADDR", 0, "no buffer of ours"),
    ],
)
def test_a_wrong_register_is_refused_by_name(register, value, says):
    words = link([TASK, TASK], [[A, B, C]] * 2)
    # The first task determines the format; every other fault is put into the second.
    at_task = 0 if register == "DPU_DATA_FORMAT" else 1
    set_word(words, register, value, at_task)

    with pytest.raises(LayoutError, match=rf"task {at_task} .*{register}.*{says}"):
        prove(words, tight(TASK), at=AT, chained=False)


def test_the_distance_of_groups_is_right_even_where_there_is_one():
    """With a wrong distance, the simulator hangs, and the NPU's behaviour is unknown."""
    one = whole("int8", "row", 2, 384, 32)
    words = program(one)
    set_word(words, "DPU_SURFACE_ADD", 0xFFFF_FFF0)

    with pytest.raises(LayoutError, match=r"DPU_SURFACE_ADD = 0xfffffff0 .* the next group"):
        prove(words, tight(one), at=AT, chained=False)


@pytest.mark.parametrize(("format", "maximum", "step"), [("int4", 480, 32), ("tf32", 4096, 16)])
def test_sums_longer_than_a_result_may_hold_are_refused(format, maximum, step):
    """int4 sums saturate at int16; there is no report that longer TF32 sums work."""
    good, long = (whole(format, "row", 1, k, 64) for k in (maximum, maximum + step))

    prove(program(good), tight(good), at=AT, chained=False)
    said = rf"CNA_FC_DATA_SIZE1 = {long.k:#x} is more .* {maximum}"
    with pytest.raises(LayoutError, match=said):
        prove(program(long), tight(long), at=AT, chained=False)


def test_a_register_that_is_not_written_is_named():
    words = program(TASK)
    words[0, 20] = words[0, 21]

    with pytest.raises(LayoutError, match="CNA_FC_CON1 is not written: there is CNA_PAD_CON0"):
        prove(words, tight(TASK), at=AT, chained=False)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("profile", list(Profile))
def test_chains_are_followed(count, profile):
    parts = [TASK] * count
    places = [[A, B, C]] * count
    chain = link(parts, places, profile=profile, chain_at=AT)
    lone = link(parts, places, profile=profile)

    prove(chain, tight(TASK), at=AT, chained=True, profile=profile)
    prove(lone, tight(TASK), at=AT, chained=False, profile=profile)
    if count > 1:
        with pytest.raises(LayoutError, match=r"task 0 .*PC_BASE_ADDRESS"):
            prove(lone, tight(TASK), at=AT, chained=True, profile=profile)
        with pytest.raises(LayoutError, match=r"task 0 .*PC_BASE_ADDRESS"):
            prove(chain, tight(TASK), at=AT, chained=False, profile=profile)
        with pytest.raises(LayoutError, match=r"task 0 .*PC_BASE_ADDRESS"):
            prove(chain, tight(TASK), at=AT + 64, chained=True, profile=profile)


def test_a_program_outside_its_buffer_is_refused():
    with pytest.raises(LayoutError, match="PC_BASE_ADDRESS reaches"):
        prove(program(TASK), tight(TASK), at=AT + 0x1_0000 - 64, chained=False)


def test_the_wrong_profile_or_shape_is_refused():
    with pytest.raises(LayoutError, match="uint64"):
        prove(program(TASK, Profile.SHORT), tight(TASK), at=AT, chained=False)
    with pytest.raises(LayoutError, match="uint64"):
        prove(program(TASK).astype(np.int64), tight(TASK), at=AT, chained=False)
    with pytest.raises(LayoutError, match="uint64"):
        prove(np.zeros((0, stride(Profile.FULL)), np.uint64), tight(TASK), at=AT, chained=False)


def test_two_forms_in_one_program_are_refused():
    words = link([TASK, whole("fp16", "row", 4, 32, 64)], [[A, B, C]] * 2)

    with pytest.raises(LayoutError, match=r"task 1 .*CNA_CONV_CON1 .* wrong for int8"):
        prove(words, tight(TASK), at=AT, chained=False)


def test_a_part_of_a_larger_product_may_not_leave_the_buffer():
    """The surfaces of the last rows of a native A end at the end of the whole A."""
    task = Task(TASK.format, Layout.NATIVE_W, 3, 64, 64, 8, 64)
    a, c = A + 5 * 16, C + 5 * 16
    spans = tight(task, a=a, c=c)

    assert spans[1].end == A + 8 * 64
    assert spans[3].end == C + 8 * 64 * 4
    prove(link([task], [[a, B, c]]), spans, at=AT, chained=False)
