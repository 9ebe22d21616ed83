"""Tests of sequences on the CPU: a row's bits depend only on its sequence, in any schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.device.segment import positional
from npurt.errors import LayoutError, OutOfPages, SettingError
from npurt.graph.rows import Rows
from npurt.graph.tensor import Kind
from tests.cpu.sequences import POSITIONS, Schedule, check_alone, compiled, limits, page_bytes
from tests.llm import tiny

TOKENS = np.random.default_rng(0).integers(0, 200, 150)
MODELS = ["llama3", "qwen3moe", "qwen35", "lfm2", "gemma3"]


def path(name):
    return next(p for kind in ("q8_0", "f32", "bf16") if (p := tiny.path(name, kind)).exists())


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_any_schedule_gives_the_bits_of_each_sequence_alone(name, data):
    maximum = data.draw(st.integers(2, 8))
    pages = data.draw(st.sampled_from([None, 4, 9]))
    sizes = limits(maximum, pages and pages * page_bytes(path(name)))
    with CpuDevice(2) as cpu, compiled(path(name), cpu, sizes) as segment:
        schedule = Schedule(data.draw, segment, maximum, 200)
        for _ in range(data.draw(st.integers(1, 10))):
            schedule.step()
            capacity = segment.capacity()
            used = sum(capacity.pages(len(text)) for text in schedule.texts.values())
            assert capacity.total - capacity.free <= used
        for sequence in schedule.texts:
            segment.forget(sequence)
        assert segment.capacity().free == capacity.total
        check_alone(schedule.seen, segment)


@pytest.fixture(params=MODELS)
def two(request):
    """Yield a segment for three sequences, and tokens."""
    with CpuDevice(2) as cpu, compiled(path(request.param), cpu, limits(3)) as segment:
        yield segment, TOKENS


def run(segment, tokens, start=0, sequence=0):
    made = [
        segment.run({"tokens": tokens[i : i + 40]}, Rows.of(len(tokens[i : i + 40]), start + i,
                                                            sequence=sequence))["logits"]
        for i in range(0, len(tokens), 40)
    ]  # fmt: skip
    return np.concatenate(made)


def test_a_fork_shares_whole_pages_and_is_exact(two):
    segment, ids = two
    run(segment, ids[:130])
    assert segment.capacity().total - segment.capacity().free == 3
    segment.fork(0, 1, 130)
    assert (
        segment.capacity().total - segment.capacity().free == 4
    )  # two are shared, the third is copied

    other = run(segment, ids[:15], 130, 1)
    then = run(segment, ids[130:145], 130)
    segment.fork(1, 2, 145)
    segment.forget(1)
    after = run(segment, ids[15:17], 145, 2)
    for sequence in (0, 2):
        segment.forget(sequence)

    assert np.array_equal(run(segment, ids[:145])[130:], then)
    alone = run(segment, np.concatenate([ids[:130], ids[:17]]), 0, 1)
    assert np.array_equal(alone[130:], np.concatenate([other, after]))


def test_a_page_of_two_owners_is_not_written_when_one_goes_back_into_it(two):
    segment, ids = two
    run(segment, ids[:129])
    segment.fork(0, 1, 129)
    length = segment.reach(1, 100)
    segment.rewind(1, length)
    run(segment, ids[::-1][: 140 - length], length, 1)

    then = run(segment, ids[129:140], 129)
    segment.forget(0)
    assert np.array_equal(run(segment, ids[:140])[129:], then)


def test_what_does_not_fit_the_pages_is_refused_and_changes_nothing():
    name, ids = path("qwen35"), TOKENS
    with CpuDevice(2) as cpu, compiled(name, cpu, limits(3, 3 * page_bytes(name))) as segment:
        assert segment.capacity().total == 3
        run(segment, ids[:60])
        run(segment, ids[:70], sequence=1)
        states, keys = segment.part.tensors(Kind.STATE), positional(segment.part)[0]
        kept = {(t, i): segment.read(t, i) for t in states for i in (0, 1)}
        both = Rows(np.repeat([0, 1], 10), np.r_[60:70, 70:80], np.ones(20, bool))
        with pytest.raises(OutOfPages, match=r"1 more pages .* 0 of 3 are free\n.*kv_bytes"):
            segment.run({"tokens": ids[:20]}, both)
        with pytest.raises(OutOfPages):
            segment.fork(1, 2, 70)
        with pytest.raises(OutOfPages):
            segment.write(keys, 2, np.zeros((65, keys.columns)))
        with pytest.raises(OutOfPages):
            run(segment, ids[:2], sequence=2)
        for (tensor, i), values in kept.items():
            assert np.array_equal(segment.read(tensor, i), values)
        with pytest.raises(LayoutError, match="has 70 positions, not 71"):
            segment.fork(1, 2, 71)

        segment.forget(1)
        run(segment, ids[60:80], 60)


def test_fewer_bytes_than_a_page_are_refused():
    minimum = page_bytes(path("llama3"))
    with CpuDevice(1) as cpu:
        few = compiled(path("llama3"), cpu, limits(2, minimum - 1))
        with pytest.raises(SettingError, match=f"use kv_bytes={minimum} or more"):
            few.__enter__()
        with compiled(path("llama3"), cpu, limits(2, 2 * minimum + 1)) as segment:
            assert segment.capacity().total == 2


def test_pages_are_for_all_sequences_without_a_budget():
    with CpuDevice(1) as cpu, compiled(path("llama3"), cpu, limits(3)) as segment:
        assert segment.capacity().total == 3 * POSITIONS // 64
