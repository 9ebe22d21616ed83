"""Tests of SmolLM2-135M on the simulated RK3588 NPU, with every product, also the output matrix."""

from pathlib import Path

import pytest

import npurt
from npurt.llm.measure.estimate import divergence

TEXT = (Path(__file__).parents[1] / "data/real/ppl_text.txt").read_text()
NAMES = ("rknpu:sim", "rknpu:sim-vendor")

# The divergence of block-32 int8 activations on the CPU is 4e-3 for this model (docs/rk3588.md).
# That of int8 with one scale a row and no rotation is ten times as large.
KL = 5e-3


def test_predictions_diverge_no_more_than_those_of_block_int8(real_model):
    apart = divergence(real_model("smollm2-135m"), NAMES[0], TEXT, tokens=128)

    assert apart.tokens == 128
    assert apart.mean <= KL
    assert apart.same_best > 0.9


def test_both_drivers_write_the_same_text_with_every_product_on_the_npu(real_model):
    texts = []
    for name in NAMES:
        with npurt.Llama(real_model("smollm2-135m"), name, n_ctx=64, progress=False) as llm:
            stream = llm.generate(
                "The capital of France is", max_tokens=12, temperature=0, stream=True
            )
            texts.append("".join(stream))
            report = llm.report()
        assert {row.actual for row in report.rows if row.macs} == {name}
        assert "0 fallbacks" in report.line()
        assert ", 0 wrong" in report.line()
        assert sum(row.verified for row in report.rows) > 0
        kinds = {row.op for row in report.rows if row.macs}
        assert kinds == {"attn_qkv", "attn_output", "ffn_gate_up", "ffn_down", "output"}
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_equals_its_tokens_one_by_one(real_model, name):
    """Prefill and decode are different tasks with different rows, and give the same numbers."""
    with npurt.Llama(real_model("smollm2-135m"), name, n_ctx=64, progress=False) as llm:
        ids = llm.tokenize("def quicksort(")
        whole = llm.eval_last(ids).copy()
        llm.reset()
        for token in ids:
            single = llm.eval_last([token])
        assert (whole == single).all()
