"""Tests that drafts change no token, with twenty prompts, three drafters and two devices."""

import numpy as np
import pytest

import npurt
from npurt.llm.spec.controller import Controller
from tests.llm import tiny

FOLDER = tiny.MODELS / "spec"
TARGET = FOLDER / "spec-target-qwen3-q8_0.gguf"
DRAFTS = {
    "lookup": "lookup",
    "model": FOLDER / "spec-draft-qwen3-q8_0.gguf",
    "block": FOLDER / "spec-dflash-qwen3-q8_0.gguf",
}
DEVICES = ("cpu", "hexagon:sim")
TEXT = np.load(FOLDER / "dflash_qwen3_oracle.npz")["prompt"].tolist()
PROMPTS = [tiny.ids("qwen3")[7 * i : 7 * i + 5 + i] for i in range(16)]
PROMPTS += [TEXT, TEXT[:20], TEXT[30:], TEXT[:9] * 3]


def written(llm):
    for prompt in PROMPTS:
        llm.reset()
        llm.generate(prompt, max_tokens=12, temperature=0)
        yield llm.history


def open_target(device, **options):
    return npurt.Llama(TARGET, device, n_ctx=128, n_threads=2, progress=False, **options)


@pytest.fixture(scope="module", params=DEVICES)
def plain(request):
    with open_target(request.param) as llm:
        return request.param, list(written(llm))


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_changes_no_text(plain, kind):
    device, expected = plain
    with open_target(device, draft=DRAFTS[kind]) as llm:
        at_once = llm.speculator.drafter.at_once
        llm.speculator.controller = Controller(5, fixed=True, at_once=at_once)

        assert list(written(llm)) == expected
        assert llm.speculator.controller.speculation.drafted > 0
        assert llm.speculator.controller.speculation.accepted > 0
