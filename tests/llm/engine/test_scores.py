"""Log probabilities of prompts that were scored before: found again, and within their memory."""

import tracemalloc

from npurt.llm.decode.logprobs import TokenLogprob
from npurt.llm.engine.scores import MAX_VALUES, Scores
from tests.llm.engine.test_engine import GREEDY, IDS, open_engine


def test_a_prompt_that_was_scored_is_not_scored_again():
    """Only tokens after the longest common prefix of whole pages are evaluated again."""
    ids = [*IDS, *reversed(IDS)] * 3
    ids, other = ids[:150], [*ids[:140], *ids[:9]]
    with open_engine(n_ctx=256) as engine:

        def score(ids, top, **options):
            before = engine.stats().counts.rows
            request = engine.submit(
                ids, GREEDY, max_tokens=2, logprobs=top, prompt_logprobs=True, **options
            )
            found = request.result()
            return found.prompt_logprobs, engine.stats().counts.rows - before

        with open_engine(n_ctx=256, prefixes=0) as fresh:
            new = fresh.submit(other, GREEDY, max_tokens=2, logprobs=2, prompt_logprobs=True)
            expected = new.result().prompt_logprobs
        first, rows = score(ids, 3)
        assert rows == 151
        again, rows = score(ids, 3)
        assert again == first
        assert rows == 2
        fewer, rows = score(ids, 1)
        assert [each.top for each in fewer] == [each.top[:1] for each in first]
        assert rows == 2
        assert score(ids, 3, salt="b") == (first, 151)
        assert score(ids, 4)[1] == 151
        assert score(other, 2) == (expected, 1 + len(other) - 128)


def filled(maximum, prompts, top):
    """Return scores of as many prompts of 65 tokens."""
    scores = Scores(maximum)
    for i in range(prompts):
        each = [
            TokenLogprob(j, -j / 7, tuple((1000 + a, -a / 3) for a in range(top)))
            for j in range(1, 65)
        ]
        scores.add([i, *range(1, 65)], "", each, top)
    return scores


def test_the_least_recently_used_are_forgotten():
    scores = filled(3 * 64 * 3, 3, 2)
    assert scores.find([0, *range(1, 65)], "", 2)
    scores.add([9, 9], "", [TokenLogprob(9, -1.0, ((1, -1.0), (2, -1.0)))], 2)

    found = [len(scores.find([i, *range(1, 65)], "", 2)) for i in range(3)]
    assert found == [64, 0, 64]


def test_memory_has_a_bound_for_any_number_of_alternatives():
    for top in (0, 20, 1000):
        tracemalloc.start()
        scores = filled(MAX_VALUES, 2 + 2 * MAX_VALUES // (64 * (1 + top)), top)
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 40 << 20, (top, size)
        del scores
