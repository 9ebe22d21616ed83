"""Tests of cached prefixes: the best match is found, and the least recently used is evicted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.llm.engine.prefixes import PAGE, SPACING, Prefixes

WORD = list(range(1, 200))  # sequences begin with tokens of it, so that many begin alike
CUTS = st.sampled_from([0, 1, 5, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 9, 150])


class Text:
    """A fake context with the attributes that the cache uses."""

    def __init__(self, tokens):
        self.state, self.released = self, False
        self.tokens = list(tokens)

    def release(self):
        assert not self.released
        self.released = True


@st.composite
def texts(draw):
    """Draw a sequence that begins with tokens of WORD and ends with random tokens."""
    return WORD[: draw(CUTS)] + draw(st.lists(st.integers(0, 2), max_size=3))


def common(a, b):
    pairs = zip(a, b, strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


@given(
    st.lists(st.tuples(texts(), st.sampled_from("ab"), st.booleans()), max_size=8),
    st.lists(st.tuples(texts(), st.sampled_from("ab")), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_best_text_is_found(kept, asked, recurrent):
    """The cache finds the same match as a search of all contexts.

    Without recurrent states, a context is dropped only if another begins with its tokens.
    """
    cache, contexts = Prefixes(99, recurrent=recurrent), []
    for tokens, salt, fixed in kept:
        context = Text(tokens)
        contexts.append((context, salt))
        cache.add(context, salt, fixed=fixed)
    alive = [(context, salt) for context, salt in contexts if not context.released]
    assert len(cache) == len(alive)
    for text, salt in asked:
        tokens = [*text, 7]
        own = [context for context, s in alive if s == salt]
        same = [(common(context.tokens, tokens[:-1]), context) for context in own]
        usable = [n for n, c in same if not recurrent or n == len(c.tokens)]

        entry, length, equal = cache.find(tokens, salt)

        assert length == max(usable, default=0)
        assert (entry is None) == (length == 0)
        if entry:
            assert entry.salt == salt
            assert entry.tokens[:length] == tokens[:length]
        if recurrent:
            assert equal == max((n for n, _ in same), default=0)
        everything = [c for c, s in contexts if s == salt]
        if not recurrent:  # a remaining context begins with the tokens of each dropped one
            assert length == max((common(c.tokens, tokens[:-1]) for c in everything), default=0)


def test_a_text_that_another_begins_with_is_dropped():
    cache, short, long = Prefixes(9, recurrent=False), Text(WORD[:10]), Text(WORD[:90])
    cache.add(short, "")
    cache.add(long, "")
    assert (short.released, long.released, len(cache)) == (True, False, 1)
    again = Text(WORD[:80])
    cache.add(again, "")
    assert (again.released, len(cache)) == (True, 1)


@pytest.mark.parametrize(("length", "fixed", "dropped"), [
    (100, False, True), (100, True, False), (100 + SPACING, False, False),
])  # fmt: skip
def test_copies_of_states_have_a_distance(length, fixed, dropped):
    cache = Prefixes(9, recurrent=True)
    words = [i % 500 for i in range(200 + SPACING)]
    first = Text(words[:50])
    cache.add(first, "", fixed=fixed)
    cache.add(Text(words[:length]), "")
    assert first.released == dropped


def test_the_least_recently_used_goes_first():
    cache = Prefixes(3, recurrent=False)
    contexts = [Text([i, i]) for i in range(3)]
    for context in contexts:
        cache.add(context, "")
    entry, length, _ = cache.find([0, 0, 5], "")
    assert length == 2
    cache.use(entry)
    cache.add(Text([3, 3]), "")

    assert [context.released for context in contexts] == [False, True, False]
    assert cache.evict()
    assert contexts[2].released
    cache.clear()
    assert not cache.evict()
    assert contexts[0].released
    assert not cache._pages


def test_nothing_is_kept_where_nothing_may_be():
    cache, context, empty = Prefixes(0, recurrent=False), Text([1, 2]), Text([])
    cache.add(context, "")
    Prefixes(4, recurrent=False).add(empty, "")
    assert context.released
    assert empty.released
