"""Tests of the truncated head: a draft model computes only the first columns of its logits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import LayoutError
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.truncated_head import LATEST, RARE, TruncatedHead
from tests.llm import tiny
from tests.llm.conftest import drafted

IDS = tiny.ids("qwen3")
# Numbers of columns of the tiny vocabulary; a quarter, 152, is rounded up to whole panels.
QUARTER, HALF, ALL = 160, 304, 608
SHORT = {"n_ctx": 64, "n_threads": 2, "progress": False}


@pytest.fixture(scope="module")
def llm():
    with npurt.Llama(tiny.path("qwen3", "q8_0"), **SHORT) as model:
        yield model


@pytest.mark.parametrize(("model", "kind"), tiny.FILES)
def test_cut_logits_are_the_first_of_all(model, kind):
    with npurt.Llama(tiny.path(model, kind), **SHORT) as llm:
        whole = llm.eval_last(tiny.ids(model, 20)).copy()
        llm.reset()
        stream = llm.context.read(tiny.ids(model, 20))
        for columns in (1, 160, 300, ALL):
            logits = llm.model.head("output", columns)(stream)

            assert logits.shape == (1, -(-columns // 16) * 16)
            np.testing.assert_array_equal(logits[0], whole[: logits.shape[1]])


def test_a_device_that_cannot_cut_gives_all():
    with npurt.Llama(tiny.path("qwen3", "q8_0"), "hexagon:sim", **SHORT) as llm:
        whole = llm.eval_last(IDS[:20]).copy()
        llm.reset()
        stream = llm.context.read(IDS[:20])

        assert llm.model.output_matrix(1).n == ALL
        np.testing.assert_array_equal(llm.model.head("output", 1)(stream)[0], whole)


def test_reading_is_evaluation_without_logits(llm):
    """This holds for any previous contents of the cache and any number of batches."""
    llm.reset()
    whole = llm.eval_last(IDS[:30]).copy()
    with npurt.Llama(llm.path, n_batch=8, **SHORT) as other:
        other.context.read(IDS[:20])
        other.rewind(7)
        stream = other.context.read(IDS[7:30])

        np.testing.assert_array_equal(other.model.head("output", ALL)(stream)[0], whole)
        assert other.history == tuple(IDS[:30])
        with pytest.raises(LayoutError, match="no token to evaluate"):
            other.context.read([])
        products = {row.op: row.calls for row in other.report().rows if row.macs}
    assert products["output"] == 1


def test_only_the_last_batch_gives_logits(llm):
    with npurt.Llama(llm.path, n_batch=8, **SHORT) as other:
        other.eval_last(IDS[:20])
        products = {row.op: row.rows for row in other.report().rows if row.macs}

    assert products["output"] == 1


@given(rare=st.lists(st.sampled_from([5, QUARTER, HALF]), max_size=2 * LATEST))
def test_the_least_cut_is_taken_that_holds_nearly_all_of_the_latest_tokens(llm, rare):
    latest = rare[-LATEST:]

    columns = TruncatedHead(llm.model, llm.model.head).columns(rare)

    behind = {cut: sum(token >= cut for token in latest) for cut in (QUARTER, HALF, ALL)}
    assert behind[columns] <= RARE * len(latest)
    assert all(behind[cut] > RARE * len(latest) for cut in behind if cut < columns)


def test_markup_is_no_part_of_a_text(llm):
    markup = max(llm.tokenizer.control)
    assert markup >= HALF

    assert TruncatedHead(llm.model, llm.model.head).columns([5, markup, 7, markup]) == QUARTER


def test_what_lies_beyond_the_truncated_head_is_never_drafted(llm):
    """The report shows only the columns of the output matrix that were read."""
    with npurt.Llama(llm.path, **SHORT) as small:
        drafter = Assistant(small.context, llm.model)
        common = [token for token in IDS if token < QUARTER][:12]

        tokens = drafted(drafter, common, 20)

        assert len(tokens) == 20
        assert max(tokens) < QUARTER
        shapes = {row.shape[0] for row in small.report().rows if row.op == "output" and row.calls}
        assert shapes == {QUARTER}


def test_a_draft_costs_what_it_reads(llm):
    """The cost excludes the embedding and includes a quarter of the output matrix."""
    with npurt.Llama(llm.path, **SHORT) as small:
        share = Assistant(small.context, llm.model).share

    head = llm.model.output_matrix(ALL).nbytes
    assert share == pytest.approx(1 - (ALL - QUARTER) / ALL * head / llm.model.weight_bytes)
    assert llm.model.weight_bytes == sum(
        w.packed.nbytes for w in llm.model._offload.weights.values()
    )
