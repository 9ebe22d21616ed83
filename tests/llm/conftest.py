"""A tiny model to generate with, and the ways in which tests do."""

import pytest

import npurt
from tests.llm import tiny

GREEDY = {"temperature": 0.0}
PROMPT = tiny.ids("llama3", 12)
FIRST_PADDING = 600  # ids from here on are padding rows of the tiny vocabularies


def open_tiny(model="llama3", kind="q8_0", **options):
    return npurt.Llama(tiny.path(model, kind), **({"n_ctx": 128} | options))


@pytest.fixture(scope="module")
def llm():
    with open_tiny() as model:
        yield model


def guessed(drafter, history, most):
    """Return the tokens that *drafter* guesses."""
    return [token for token, _ in drafter.guesses(history, most)]


def fresh(llm, prompt=PROMPT, **options):
    """Generate from an empty cache."""
    llm.reset()
    return llm.generate(prompt, **options)
