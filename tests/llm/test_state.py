"""Tests of a model's state: it is rewound, copied and restored with identical results."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npurt
from npurt.cpu.state.recurrent import SPACING, STORED_TOKENS, Recurrent, recurrences
from npurt.errors import ContextFull, LayoutError, SettingError
from npurt.graph import ops
from npurt.graph.tensor import Dim, Kind, Tensor
from npurt.runtime.execute.plan import Plan
from tests.llm import tiny, variants
from tests.llm.conftest import OPTIONS


def macs(llm):
    return sum(row.macs for row in llm.report().rows)


# --- Taken back -----------------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(st.just("eval"), st.integers(1, 60)),
    st.tuples(st.just("singles"), st.integers(1, 40)),
    st.tuples(st.just("rollback"), st.integers(0, 70)),
    st.tuples(st.sampled_from(["snapshot", "restore", "reset"]), st.just(0)),
)


@given(st.lists(steps, min_size=1, max_size=9), st.integers(0, 90))
def test_any_sequence_of_steps_ends_where_the_straight_way_does(pair, sequence, offset):
    """The next logits and all keys, values and states equal those of a single evaluation."""
    llm, straight, ids = pair
    llm.reset()
    kept, at = llm.snapshot(), offset
    for step, count in sequence:
        if step in ("eval", "singles"):
            part = [ids[(at + i) % 150] for i in range(min(count, 120 - llm.n_tokens))]
            at += 31
            for piece in [part] if step == "eval" else [[i] for i in part]:
                llm.eval(piece)
        elif step == "rollback":
            llm.rollback(min(count, llm.n_tokens))
        elif step == "snapshot":
            kept = llm.snapshot()
        elif step == "restore":
            llm.restore(kept)
        else:
            llm.reset()

    history = llm.history
    straight.reset()
    straight.eval(history)
    have, want = llm.snapshot(), straight.snapshot()
    np.testing.assert_array_equal(llm.eval(ids[:5]), straight.eval(ids[:5]))
    assert have.tokens == want.tokens == history
    for a, b in zip(have.arrays, want.arrays, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batch", [2, 5, 16, 32])
def test_taking_back_a_part_of_the_last_batch_multiplies_nothing(hybrid, batch):
    """Speculation needs this: it evaluates draft tokens together and rewinds the wrong ones."""
    ids = tiny.ids("qwen35")
    hybrid.eval(ids[:40])
    for at in range(40, 100, batch):
        hybrid.eval(ids[at : at + batch])
        before = macs(hybrid)
        hybrid.rollback(batch - 1)
        assert macs(hybrid) == before
        hybrid.eval(ids[at + 1 : at + batch])


def test_taking_back_any_of_the_last_single_tokens_multiplies_nothing(hybrid):
    ids = tiny.ids("qwen35")
    for start in (1, 30, 50, 90):
        hybrid.reset()
        for token in ids[: start + SPACING]:
            hybrid.eval([token])
        before = macs(hybrid)
        hybrid.rollback(SPACING)
        assert (macs(hybrid), hybrid.n_tokens) == (before, start)


def test_more_than_can_be_taken_back_is_evaluated_again(hybrid):
    ids = tiny.ids("qwen35")
    hybrid.eval(ids[:140])
    assert hybrid.state.reach(20) == 0
    before = macs(hybrid)

    hybrid.rewind(20)

    assert macs(hybrid) > before
    assert hybrid.history == tuple(ids[:20])


def test_a_prompt_is_reused_as_far_as_states_reach(hybrid):
    """A prefix that the stored states do not reach is not reused, but evaluated again."""
    ids = tiny.ids("qwen35", 100)
    hybrid.generate(ids, max_tokens=2, temperature=0)
    hybrid.generate(ids[:95], max_tokens=2, temperature=0)
    assert hybrid.timing.reused_tokens == 94
    hybrid.generate(ids[:30], max_tokens=2, temperature=0)
    assert hybrid.timing.reused_tokens == 0


@pytest.mark.parametrize("count", [-1, 6])
def test_what_is_not_there_cannot_be_taken_back(hybrid, count):
    hybrid.eval([1, 2, 3, 4, 5])
    with pytest.raises(LayoutError, match=f"{count} of 5 tokens"):
        hybrid.rollback(count)
    assert hybrid.n_tokens == 5


def test_a_run_that_was_broken_off_leaves_no_trace(hybrid, monkeypatch):
    ids = tiny.ids("qwen35", 100)
    wanted = hybrid.eval(ids)
    hybrid.rewind(60)
    run = Plan.run

    def breaks(plan, table):
        run(plan, table)
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "run", breaks)
    with pytest.raises(KeyboardInterrupt):
        hybrid.eval(ids[60:80])
    monkeypatch.undo()

    assert hybrid.history == tuple(ids[:60])
    np.testing.assert_array_equal(hybrid.eval(ids[60:]), wanted[60:])


def test_a_full_context_forgets_its_older_half(tmp_path):
    """States cannot forget single tokens, so the newer half is evaluated again from the start."""
    ids = tiny.ids("qwen35")
    with npurt.Llama(tiny.path("qwen35", "f32"), n_ctx=40, context_shift=True) as llm:
        llm.eval(ids[:40])
        y = llm.eval(ids[40:42])
        kept = llm.history
        llm.reset()

        np.testing.assert_array_equal(llm.eval(kept)[-2:], y)
    assert kept == tuple(ids[20:42])


@pytest.mark.parametrize("n_batch", [1, 5])
def test_states_are_replayed_in_runs_that_the_buffers_hold(n_batch, monkeypatch):
    """A replay of 21 tokens with a batch of one used to write past buffers of one row."""
    ids, options = tiny.ids("qwen35"), {"n_ctx": 64, "n_threads": 1, "n_batch": n_batch}
    with npurt.Llama(tiny.path("qwen35", "f32"), **options) as llm:
        llm.eval(ids[:21])
        expected = llm.eval_last(ids[21:22]).copy()
        runs, replay = [], Plan.replay
        monkeypatch.setattr(
            Plan, "replay", lambda plan, *run: runs.append(run) or replay(plan, *run)
        )

        llm.rollback(1)

        rows = [table.rows for (table,) in runs]
        assert sum(rows) > n_batch >= max(rows)
        np.testing.assert_array_equal(llm.eval_last(ids[21:22]), expected)


# --- Copies of states -----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(1, 40),
)
@example([(30, 0), (60, 30), (1, 10)], 40)  # a copy whose inputs others have overwritten since
@example([(2, 0), (20, 15), *[(1, 0)] * 20, (1, 5)], 40)  # a copy of tokens that were taken back
def test_copies_reach_back_as_far_as_they_should(sequence, maximum):
    """At least to the start of the last batch, or SPACING tokens; and what they reach is there.

    In this test, each token has a unique number, even at a position that was taken back.  A state
    is the number of the last token in it.  A replay must begin at a copy of the right tokens and
    find its inputs.
    """
    nets = recurrences([delta_net(width=16, kernel_size=4)], 2)
    states, control = Recurrent(nets, 1), nets["net"].control[1]
    slots, kept = nets["net"].array[1].reshape(3, -1), states.stored_inputs["net"]
    history, singles, number = [0], 0, 0  # the number of no token, then one of each

    def replay(count, first):
        start, saved, _ = control.tolist()
        assert (saved, count <= maximum) == (-1, True)
        assert slots[start, 0] == history[first], "the copy is of other tokens"
        needed = np.arange(max(0, first - 3), first + count)
        np.testing.assert_array_equal(kept[needed % len(kept), 0], np.array(history)[needed + 1])
        slots[0] = history[first + count]

    for rows, back in sequence:
        position = len(history) - 1
        states.begin(position, rows)
        history += range(number + 1, number + 1 + rows)
        number += rows
        start, saved, before = control.tolist()
        assert start == 0
        if saved >= 0:
            slots[saved] = history[position + before]
        tokens = np.arange(position, position + rows)[-len(kept) :]
        kept[tokens % len(kept), 0] = np.array(history)[tokens + 1]
        slots[0] = history[-1]
        position += rows
        states.end(position)
        singles = singles + 1 if rows == 1 else 0
        sure = max(min(rows, SPACING), min(singles, SPACING))
        assert states.reach(position - sure) == position - sure
        target = states.reach(max(0, position - back))
        states.rewind(target, replay, maximum)
        assert slots[0, 0] == history[target]
        singles = singles if target == position else 0
        del history[target + 1 :]


def delta_net(width, kernel_size):
    """Return a net of one head and its convolution."""
    t, c, w = Dim("T", None), Dim("C", 3 * width), Dim("W", width)
    q, k, v, out = (Tensor(name, (t, w)) for name in ("q", "k", "v", "out"))
    x, mixed = Tensor("x", (t, c)), Tensor("mixed", (t, c))
    gates = [Tensor(name, (t, Dim("H", 1))) for name in ("beta", "decay")]
    kernel = Tensor("kernel", (c, Dim("k", kernel_size)), kind=Kind.WEIGHT)
    inputs = Tensor("inputs", (Dim("k - 1", kernel_size - 1), c), kind=Kind.STATE)
    state = Tensor("state", (Dim("H", 1), w, w), kind=Kind.STATE)
    conv = ops.ShortConv("conv", x, kernel, None, inputs, mixed)
    net = ops.GatedDeltaNet("net", q, k, v, *gates, state, out, 1, 1, 1.0, grouped=False)
    return net, conv


def test_inputs_are_kept_for_as_long_as_copies_need_them():
    assert STORED_TOKENS == 2 * SPACING


@pytest.mark.parametrize("n_ctx", [-5, (1 << 22) + 1])
def test_a_context_that_cannot_be_had_is_refused(n_ctx):
    with pytest.raises(SettingError, match=f"{n_ctx} tokens"):
        npurt.Llama(tiny.path("llama3", "f32"), n_ctx=n_ctx)


def test_an_element_type_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="q8_0"):
        npurt.Llama(tiny.path("llama3", "f32"), kv_type="q8_0")


@given(st.integers(0, 150), st.integers(0, 200))
def test_there_is_room_until_there_is_none(pair, length, count):
    llm, _, ids = pair
    llm.reset()
    llm.eval(ids[:length])
    if length + count <= llm.n_ctx:
        llm.state.require(count)
    else:
        with pytest.raises(ContextFull, match=f"{length} of {llm.n_ctx}"):
            llm.state.require(count)


# --- Copied ---------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change(pair):
    llm, _, ids = pair
    llm.reset()
    llm.eval(ids[:30])
    snapshot = llm.snapshot()
    arrays = [array.copy() for array in snapshot.arrays]

    llm.eval(ids[:40])
    llm.reset()
    llm.eval(ids[50:90])

    for have, want in zip(snapshot.arrays, arrays, strict=True):
        np.testing.assert_array_equal(have, want)
    assert snapshot.nbytes == sum(array.nbytes for array in arrays)


def test_a_snapshot_of_another_model_or_a_larger_context_is_refused(pair):
    llm, _, ids = pair
    llm.reset()
    llm.eval(ids[:30])
    with npurt.Llama(tiny.path("qwen3", "f32"), n_ctx=160, verify="off") as other:
        other.eval(ids[:4])
        with pytest.raises(LayoutError, match="of 4 tokens does not fit"):
            llm.restore(other.snapshot())
        with pytest.raises(LayoutError, match="of 30 tokens does not fit"):
            other.restore(llm.snapshot())
    with npurt.Llama(llm.path, n_ctx=20, verify="off") as small:
        with pytest.raises(LayoutError, match="context of 20"):
            small.restore(llm.snapshot())
        assert small.n_tokens == 0
    assert llm.history == tuple(ids[:30])


def test_a_snapshot_of_a_model_that_was_trained_further_is_refused(tmp_path):
    """The arrays of the snapshot would fit the model."""
    file = tiny.read(tiny.path("qwen3", "f32"))
    weight = variants.values(file)["blk.0.attn_v.weight"]
    paths = [
        tiny.write(tiny.with_tensor(file, "blk.0.attn_v.weight", factor * weight), tmp_path, name)
        for factor, name in ((1, "one.gguf"), (1.01, "other.gguf"))
    ]
    one, other = (npurt.Llama(path, **OPTIONS) for path in paths)
    with one, other:
        one.eval([1, 2, 3, 4])
        with pytest.raises(LayoutError, match="of 4 tokens does not fit") as caught:
            other.restore(one.snapshot())
        assert caught.value.remedy
        assert other.n_tokens == 0
