"""Test the check and the run of programs by other authors, on buffers that are arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.errors import LayoutError, SettingError
from npurt.rknpu.driver.execute import execute, spans_of
from npurt.rknpu.isa import program
from npurt.rknpu.isa.formats import FORMATS
from npurt.rknpu.isa.layout import Layout, pack_weights
from npurt.rknpu.isa.lower import Profile
from npurt.rknpu.isa.task import Task
from npurt.rknpu.plan.check import check, tasks_of
from npurt.rknpu.plan.proof import BufferSpan, Role
from tests.rknpu.fixtures import A, B, C, load, whole

INT8 = FORMATS["int8"]


def product(m, k, n, tasks=1, chain_at=None, seed=0):
    """Return a program of *tasks* tasks with a common A; also its inputs, outputs and results."""
    rng = np.random.default_rng(seed)
    a = rng.integers(-128, 128, (m, k), np.int8)
    b = rng.integers(-128, 128, (tasks, n, k), np.int8)
    packed = np.concatenate([pack_weights(each, INT8).ravel() for each in b])
    task = Task(INT8, Layout.ROW, m, k, n, m, k)
    places = [[A, B + i * n * k, C + i * m * n * 4] for i in range(tasks)]
    words = program.link([task] * tasks, places, chain_at=chain_at)
    c = np.full((tasks, m, n), -1, np.int32)
    exact = a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1)
    return words.ravel().tolist(), {A: a, B: packed}, {C: c}, exact


@settings(max_examples=20)
@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.booleans(),
)  # fmt: skip
def test_it_computes_the_same_wherever_the_driver_has_its_buffers(driver, m, k, n, tasks, chained):
    at = 0x500_0000 if chained else None
    words, inputs, outputs, exact = product(m, 32 * k, 32 * n, tasks, at)

    checked = execute(driver, words, inputs, outputs)

    assert np.array_equal(outputs[C], exact)
    assert checked.chained == (chained and tasks > 1)


def test_nothing_is_left_in_memory(driver):
    words, inputs, outputs, _ = product(4, 64, 32)
    execute(driver, words, inputs, outputs)
    before = driver.spaces[0].used

    execute(driver, words, inputs, outputs)

    assert driver.spaces[0].used == before


def test_what_is_not_written_becomes_zero(driver):
    words, inputs, _, exact = product(2, 32, 32)
    larger = np.full((4, 32), -1, np.int32)

    execute(driver, words, inputs, {C: larger})

    assert np.array_equal(larger[:2], exact[0])
    assert not larger[2:].any()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda i, o: (i, {C: o[C][:, :1].copy()}), "DPU_DST_BASE_ADDR reaches 0x3000000"),
        (lambda i, o: ({A: i[A]}, o), "CNA_DCOMP_ADDR0"),
        (lambda i, o: ({**i, C: np.ones(512, np.uint8)}, {B + (1 << 20): o[C]}), "for another use"),
        (lambda i, o: ({**i, A + 64: i[A]}, o), "overlap"),
        (lambda i, o: ({**i, A: np.empty((0, 64), np.int8)}, o), "has 0 bytes"),
        (lambda i, o: ({**i, A: i[A].T.copy().T}, o), "in C order: False"),
    ],
)
def test_buffers_that_do_not_fit_are_refused_before_anything_is_submitted(driver, change, why):
    words, inputs, outputs, _ = product(4, 64, 32)
    before = driver.spaces[0].used

    with pytest.raises(LayoutError, match=why):
        execute(driver, words, *change(inputs, outputs))
    assert driver.spaces[0].used == before


@given(st.integers(0, 125), st.integers(0, 63))
def test_a_program_with_one_bit_changed_is_refused_or_stays_in_its_buffers(word, bit):
    words, inputs, outputs, _ = product(4, 64, 32)
    words[word] ^= 1 << bit
    spans = spans_of(inputs, outputs)

    try:
        proof = check(words, spans).proof
    except LayoutError:
        return
    assert proof.reads <= set(spans)
    assert proof.writes <= set(spans)


def test_a_program_without_dpu_rdma_runs_under_the_vendors_driver_only(driver):
    task = Task(INT8, Layout.ROW, 4, 64, 32, 4, 64)
    words = program.single(task, A, B, C, Profile.SHORT)
    _, inputs, outputs, exact = product(4, 64, 32)

    if not driver.chained:
        with pytest.raises(LayoutError, match="DPU_RDMA may hang"):
            execute(driver, words, inputs, outputs)
        return
    execute(driver, words, inputs, outputs)
    assert np.array_equal(outputs[C], exact)


@pytest.mark.parametrize("count", [0, 1, 107, 109, 125, 129, 253])
def test_what_is_not_whole_tasks_is_refused(count):
    words, *_ = product(4, 64, 32, tasks=2)

    with pytest.raises(LayoutError, match="not whole matmul tasks of 126"):
        tasks_of(words[:count])


def test_words_of_zero_at_the_end_change_nothing():
    words, *_ = product(4, 64, 32, tasks=2)

    table, profile = tasks_of([*words, *[0] * 50])

    assert table.ravel().tolist() == words
    assert profile is Profile.FULL


@pytest.mark.parametrize("entry", load("foreign_words.json")["programs"], ids=lambda e: str(e[:3]))
def test_programs_of_others_that_ran_on_silicon_are_harmless(entry):
    *_, name, shape, words = entry
    task = whole(name, "native-h", *shape)
    named = program.spans(task, A, B, C)
    spans = [
        BufferSpan(named[n].start, named[n].stop, Role.OUTPUT if n == "C" else Role.INPUT, n)
        for n in named
    ]

    checked = check([int(word, 16) for word in words], spans)

    assert [span.name for span in checked.proof.writes] == ["C"]


def test_a_program_in_the_way_of_a_buffer_is_refused_and_by_default_it_is_not():
    words, inputs, outputs, _ = product(4, 64, 32)
    spans = spans_of(inputs, outputs)

    check(words, spans)
    with pytest.raises(LayoutError, match=r"the program .* overlap"):
        check(words, spans, at=A + 64)


def test_a_chain_says_where_it_has_to_be():
    words, inputs, outputs, _ = product(4, 64, 32, tasks=3, chain_at=0x500_0000)
    spans = spans_of(inputs, outputs)

    assert check(words, spans).chained
    with pytest.raises(LayoutError, match="PC_BASE_ADDRESS"):
        check(words, spans, at=0x600_0000)


def test_buffers_that_fill_all_addresses_leave_none_for_the_program():
    words, *_ = product(4, 64, 32)

    with pytest.raises(LayoutError, match="leave no 1024 bytes"):
        check(words, [BufferSpan(0, 1 << 32, Role.INPUT, "all")])


TOP = 1 << 32  # the first address beyond the NPU's range


@pytest.mark.parametrize(
    ("why", "at"),
    [("no multiple of 64", at) for at in (7, 32)]
    + [("not within", at) for at in (-1024, TOP - 1024 + 64, TOP, (1 << 64) - 1, 10**30)],
)
def test_a_program_where_none_can_be_is_refused(why, at):
    words, inputs, outputs, _ = product(4, 64, 32)

    with pytest.raises(LayoutError, match=f"the program .*{why}"):
        check(words, spans_of(inputs, outputs), at=at)


@pytest.mark.parametrize("at", [0, 64, TOP - 1024])
def test_a_program_up_to_the_last_address_is_harmless(at):
    words, inputs, outputs, _ = product(4, 64, 32)

    check(words, spans_of(inputs, outputs), at=at)


def test_a_chain_that_would_begin_below_address_0_is_refused():
    words, inputs, outputs, _ = product(4, 64, 32, tasks=2, chain_at=64 - 1024)

    with pytest.raises(LayoutError, match=r"the program .*-0x3c0"):
        check(words, spans_of(inputs, outputs))


@pytest.mark.parametrize("start", [-64, TOP - 256, TOP, 10**30])
def test_a_buffer_where_none_can_be_is_refused(start):
    words, inputs, outputs, _ = product(4, 64, 32)
    spans = spans_of(inputs, outputs)

    for role in (Role.INPUT, Role.OUTPUT):
        spare = BufferSpan(start, start + 512, role, "the spare one")
        with pytest.raises(LayoutError, match="the spare one"):
            check(words, [*spans, spare])
    with pytest.raises(LayoutError, match="the empty one"):
        check(words, [*spans, BufferSpan(64, 64, Role.INPUT, "the empty one")])


def test_a_result_that_runs_past_4_gib_is_refused():
    task = Task(INT8, Layout.ROW, 4, 64, 64, 4, 64)
    words = program.link([task], [[A, B, TOP - 256]]).ravel().tolist()
    spans = [
        BufferSpan(A, A + 256, Role.INPUT, "A"),
        BufferSpan(B, B + 4096, Role.INPUT, "B"),
        BufferSpan(TOP - 256, TOP + 768, Role.OUTPUT, "C"),
    ]

    with pytest.raises(LayoutError, match=r"C .*0xffffff00 \.\. 0x100000300"):
        check(words, spans)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda i, o: (i, {C: read_only(o[C])}), "read-only"),
        (lambda i, o: (i, {C: np.zeros(512, object)}), "object"),
        (lambda i, o: ({**i, A: np.zeros(256, object)}, o), "object"),
        (lambda i, o: ({**i, A: np.zeros(256, "i1,O")}, o), "O"),
    ],
)
def test_arrays_that_cannot_be_copied_byte_by_byte_are_refused(driver, change, why):
    words, inputs, outputs, _ = product(4, 64, 32)
    before = driver.spaces[0].used

    with pytest.raises(LayoutError, match=why):
        execute(driver, words, *change(inputs, outputs))
    assert driver.spaces[0].used == before


def test_an_input_may_be_read_only(driver):
    words, inputs, outputs, exact = product(4, 64, 32)

    execute(driver, words, {at: read_only(array) for at, array in inputs.items()}, outputs)

    assert np.array_equal(outputs[C], exact)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("-inf")])
def test_a_timeout_that_is_no_time_is_refused_before_anything_is_submitted(driver, timeout_s):
    words, inputs, outputs, _ = product(4, 64, 32)

    with pytest.raises(SettingError, match="is not above 0"):
        execute(driver, words, inputs, outputs, timeout_s=timeout_s)
    assert (outputs[C] == -1).all()
