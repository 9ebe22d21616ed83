"""Test that the scripts whose types are checked run, and return the stated results."""

import numpy as np
import pytest

import npurt
from tests.llm import tiny
from tests.typing import scripts

TEMPLATE = "{{ style }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_products_run(capsys):
    a, b = np.ones((32, 32), np.float32), np.eye(32, dtype=np.float32)

    y = scripts.products(a, b, "cpu")

    np.testing.assert_allclose(y, a, rtol=0.05)
    assert "PackedWeight(q4_0" in capsys.readouterr().out


def test_sums_are_exact():
    a = np.full((4, 4), -128, np.int8)

    assert (scripts.exact_sums(a, a) == 4 * 128 * 128).all()


def test_a_matrix_of_a_file_multiplies():
    with npurt.GGUF(tiny.path()) as file:
        values = file["blk.0.attn_q.weight"].dequantize()
    x = np.eye(len(values), dtype=np.float32)

    np.testing.assert_array_equal(scripts.a_matrix_of_a_file(tiny.path(), x), values.T)


def test_text_is_generated_whole_and_in_pieces(capsys):
    assert isinstance(scripts.text(str(tiny.path())), str)
    assert capsys.readouterr().out


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_answered(stream):
    with npurt.Llama(tiny.path(), n_ctx=256, chat_template=TEMPLATE) as llm:
        assert "".join(scripts.conversation(llm, stream))


def test_a_script_for_mlx_lm_runs(capsys):
    text = scripts.script_for_mlx_lm(str(tiny.path()))

    assert isinstance(text, str)
    assert capsys.readouterr().out


def test_a_script_for_llama_cpp_runs():
    assert scripts.script_for_llama_cpp(str(tiny.path())).startswith("Q: What is an NPU? A: ")


def test_devices_are_listed(capsys):
    scripts.devices()

    assert "cpu True" in capsys.readouterr().out
