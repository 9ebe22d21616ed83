"""Tests of the output matrix on a simulated NPU: greedy text equals that of the exact matrix."""

import numpy as np
import pytest

import npurt
from npurt.runtime.execute.shortlist import Shortlist

PROMPTS = [
    "Once upon a time", "The capital of France is", "def quicksort(values):", "1, 1, 2, 3, 5, 8,",
    "Water boils at", "Dear Sir or Madam,", "import numpy as np\n", "The opposite of hot is",
    "SELECT name FROM", "In the year 1969,", "Two plus two equals", "#include <stdio.h>\n",
    "Il était une fois", "To make bread you need", "A haiku about the sea:\n", "<html>\n<head>",
    "Q: Who wrote Hamlet?\nA:", "The quick brown fox", "while True:\n    ", "She opened the door",
]  # fmt: skip


@pytest.mark.parametrize("device", ["hexagon:sim", "rknpu:sim"])
def test_the_best_token_is_that_of_the_exact_output_matrix(real_model, device, monkeypatch):
    """Every token is the best of the exact product, so the text is that of the exact matrix."""
    seen = []

    def watch(shortlist, x, logits):
        rescore(shortlist, x, logits)
        seen.append((x.copy(), logits.argmax(axis=1), shortlist._tensor))

    rescore = Shortlist.rescore
    monkeypatch.setattr(Shortlist, "rescore", watch)
    with npurt.Llama(real_model("smollm2-135m"), device, n_ctx=64, progress=False) as llm:
        for prompt in PROMPTS:
            llm.reset()
            llm.generate(prompt, max_tokens=4, temperature=0)
        report = str(llm.report())

    assert len(seen) >= 2 * len(PROMPTS)
    head = seen[0][2].dequantize().T
    for x, best, _ in seen:
        np.testing.assert_array_equal(best, (x @ head).argmax(axis=1))
    assert "probability outside them" in report
