"""Tests of the measurement of draft lengths: its counts are right, and its ratios are fair."""

import pytest

from npurt.errors import SettingError
from npurt.llm.decode.llama import Llama
from npurt.llm.measure.speculation import PROMPTS, _row, _Run, bench_spec
from npurt.llm.spec.assistant import Assistant
from npurt.llm.spec.speculation import Speculation
from tests.llm import tiny

# The prompts of the measurement exceed the context for which these models were trained.
pytestmark = pytest.mark.filterwarnings("ignore:a context of .* exceeds:UserWarning")

MODEL = tiny.path("qwen3", "q8_0")
ITSELF = {"numbers": (1, 3), "tokens": 21, "repetitions": 2, "prompts": {"one": "a b c"}}
OPTIONS = {"device": "cpu", "n_threads": 1, "progress": False}


@pytest.fixture(scope="module")
def rows():
    """Return the rows of a model that drafts for itself: every draft token is right."""
    return bench_spec(MODEL, MODEL, **ITSELF, **OPTIONS)


def test_there_is_a_row_for_plain_decoding_each_number_and_the_controller(rows):
    assert [(row["prompt"], row["n"]) for row in rows] == [("one", n) for n in (0, 1, 3, "auto")]


def test_the_text_is_the_same_in_every_row(rows):
    assert all(row["same_text"] for row in rows)
    assert len({row["tokens"] for row in rows}) == 1


def test_plain_decoding_is_the_measure(rows):
    assert rows[0]["speedup"] == 1.0
    assert rows[0]["drafted"] == rows[0]["accepted"] == 0
    assert all(row["speedup"] > 0 and len(row["samples"]) == 2 for row in rows)


def test_a_model_that_drafts_for_itself_is_always_right(rows):
    """Each pass gives n + 1 of the 20 tokens after the first one."""
    _, one, three, _ = rows

    for row, n in ((one, 1), (three, 3)):
        assert row["tokens"] == 21
        assert row["accept_rate"] == 1.0
        assert row["accepted"] == row["drafted"] == 20 * n // (n + 1)
        assert row["accepted_length"] == n + 1


def test_each_run_reads_the_prompt_anew(monkeypatch):
    """Cached tokens of one run would make the next run faster."""
    read = []
    prepare = Assistant.prepare
    monkeypatch.setattr(
        Assistant,
        "prepare",
        lambda self, ids, maximum: (read.append(len(ids)), prepare(self, ids, maximum)),
    )
    long = ITSELF | {"prompts": {"one": "a b c d e f g h i j k l m n o p"}}
    _, one, three, _ = bench_spec(MODEL, MODEL, **long, **OPTIONS)

    assert len(read) >= 4  # two repetitions of two runs with drafts
    assert all(row["total_speedup"] > 0 for row in (one, three))


def test_the_prompt_is_in_the_total():
    """Decoding takes 4 seconds instead of 8, and the rest 12 in both runs: 20 / 16 = 1.25."""
    plain = _Run("t", 8, 0.8, 20.0, Speculation())
    fast = _Run("t", 8, 1.6, 16.0, Speculation())
    with Llama(MODEL, draft="lookup", **OPTIONS) as llm:
        row = _row(llm, "p", 2, [fast, fast], [plain, plain])

    assert (row["speedup"], row["total_speedup"]) == (2.0, 1.25)


def test_another_text_is_noticed(monkeypatch):
    """If a faulty speculator changes the generated string, ``same_text`` of the row is false."""
    real = Llama.chat
    monkeypatch.setattr(
        Llama, "chat", lambda llm, *a, **o: real(llm, *a, **o) + "!" * bool(llm.speculator)
    )

    plain, *others = bench_spec(MODEL, "lookup", **ITSELF, **OPTIONS)

    assert plain["same_text"]
    assert not any(row["same_text"] for row in others)


def test_the_prompts_leave_room_for_their_text():
    """A byte makes at most one token; the template needs some tokens, too."""
    assert max(len(prompt.encode()) for prompt in PROMPTS.values()) <= 800


@pytest.mark.parametrize(
    "wrong",
    [{"repetitions": 0}, {"tokens": 1}, {"numbers": ()}, {"numbers": (0, 2)}, {"prompts": {}}],
)
def test_nothing_to_measure_is_refused(wrong):
    with pytest.raises(SettingError, match="nothing to measure"):
        bench_spec(MODEL, "lookup", **(ITSELF | wrong))
