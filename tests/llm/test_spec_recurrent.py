"""Tests of speculation with delta nets: tokens and states are those of plain decoding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt
from npurt.errors import SettingError
from npurt.llm.spec.lookup import Lookup
from npurt.llm.spec.speculator import Speculator
from tests.llm import tiny
from tests.llm.test_spec import Oracle

PROMPT = tiny.ids("qwen35", 10) * 2  # repeated, so that lookup finds drafts
LONG = 110


@pytest.fixture(scope="module", params=["f32", "q8_0"])
def llm(request):
    with npurt.Llama(
        tiny.path("qwen35", request.param), n_ctx=256, n_threads=2, progress=False
    ) as llm:
        yield llm


def write(llm, drafter=None, maximum=4, count=LONG, **options):
    """Return prompt and text as ids, the state after them, and the counts of drafts."""
    llm.reset()
    llm.speculator = speculator = Speculator(drafter, maximum, fixed=True) if drafter else None
    llm.generate(PROMPT, max_tokens=count, **({"temperature": 0} | options))
    llm.speculator = None
    said = speculator.controller.speculation if speculator else None
    return llm.history, llm.snapshot(), said


@pytest.fixture(scope="module")
def plain(llm):
    return write(llm)


def assert_same(one, other):
    """Assert that ids and states are equal bit for bit."""
    assert one[0] == other[0]
    assert one[1].tokens == other[1].tokens
    for a, b in zip(one[1].arrays, other[1].arrays, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("maximum", [1, 4, 8])
def test_lookup_changes_neither_text_nor_states(llm, plain, maximum):
    drafted = write(llm, Lookup(2, 1), maximum)

    assert_same(drafted, plain)
    assert drafted[2].drafted > 0


def test_right_draft_tokens_are_all_taken(llm, plain):
    drafted = write(llm, Oracle(plain[0]), count=101)

    assert_same(drafted, write(llm, count=101))
    # There are 20 passes of 5 tokens, 4 of which are drafted.
    assert drafted[2].accepted == drafted[2].drafted == 80


def test_wrong_draft_tokens_are_all_taken_back(llm, plain):
    drafted = write(llm, Oracle([*plain[0], *[1] * 9], lambda position: True))

    assert_same(drafted, plain)
    assert drafted[2].accepted == 0 < drafted[2].drafted


@settings(max_examples=15)
@given(
    maximum=st.integers(1, 40),
    wrong=st.sets(st.integers(len(PROMPT), len(PROMPT) + LONG), max_size=60),
    count=st.integers(1, LONG),
    temperature=st.sampled_from([0.0, 0.9]),
)
def test_whatever_is_drafted_text_and_states_stay(llm, maximum, wrong, count, temperature):
    options = {"temperature": temperature, "seed": 1}
    whole = write(llm, **options)
    expected = write(llm, count=count, **options)

    drafted = write(llm, Oracle(whole[0], wrong.__contains__), maximum, count, **options)

    assert_same(drafted, expected)


def rows_evaluated(llm):
    return sum(row.rows for row in llm.report().rows if row.tensor == "blk.0.ffn_down")


def test_the_most_draft_tokens_are_taken_back_without_another_pass():
    """A larger ``draft_max`` is refused, because a rollback would evaluate tokens again."""
    options = {"n_ctx": 256, "verify": "off", "progress": False, "draft": "lookup"}
    with pytest.raises(SettingError, match="drafted at once") as caught:
        npurt.Llama(tiny.path("qwen35", "f32"), draft_max=200, **options)
    maximum = int(caught.value.remedy.split()[-1])
    with npurt.Llama(tiny.path("qwen35", "f32"), draft_max=maximum, **options) as llm:
        llm.eval(PROMPT * 5)
        before = rows_evaluated(llm)
        for token in range(3):
            llm.eval([token] * (1 + maximum))
            llm.rollback(maximum)

        assert rows_evaluated(llm) - before == 3 * (1 + maximum)


def test_what_follows_is_the_same(llm, plain):
    """Rewound states continue like states that were never advanced too far."""
    write(llm)
    expected = llm.eval([5, 6, 7]).copy()
    write(llm, Oracle(plain[0], lambda position: position % 3 == 0), 6)

    np.testing.assert_array_equal(llm.eval([5, 6, 7]), expected)


def test_draft_tokens_that_are_taken_back_leave_no_bit_on_a_hexagon():
    """A state on the Hexagon has more bits than the float32 copy on the host."""
    ids = tiny.ids("qwen35", 40)
    with npurt.Llama(
        tiny.path("qwen35", "q8_0"), "hexagon:sim", n_ctx=64, n_threads=2, progress=False
    ) as llm:
        expected = llm.eval(ids)
        llm.reset()
        for right, wrong in ((7, 5), (1, 3), (12, 30), (1, 1)):
            at = llm.n_tokens
            y = llm.eval([*ids[at : at + right], *[7] * wrong])
            np.testing.assert_array_equal(y[:right], expected[at : at + right])
            llm.rollback(wrong)
        at = llm.n_tokens
        rest = [llm.eval([token])[0] for token in ids[at:]]

    np.testing.assert_array_equal(rest, expected[at:])


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
def test_so_it_is_on_devices(device):
    with npurt.Llama(
        tiny.path("qwen35", "q8_0"), device, n_ctx=64, n_threads=2, progress=False
    ) as llm:
        expected = write(llm, count=16)
        drafter = Oracle(expected[0], lambda position: position % 4 == 0)

        assert write(llm, drafter, 5, 16)[0] == expected[0]
