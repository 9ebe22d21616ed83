"""Fixtures and helpers for tests of generation and rewinding with the tiny models."""

import pytest

import npurt
from tests.llm import tiny
from tests.llm.engine.stepping import opened  # noqa: F401  a fixture

GREEDY = {"temperature": 0.0}
PROMPT = tiny.ids("llama3", 12)
MODELS = [("qwen35", "f32"), ("qwen35", "q8_0"), ("qwen3moe", "q8_0"), ("llama3", "f32")]
OPTIONS = {"n_ctx": 160, "verify": "off", "n_batch": 48}
FIRST_PADDING = 600  # from this id on, rows of the tiny vocabularies are padding


def open_tiny(model="llama3", kind="q8_0", **options):
    return npurt.Llama(tiny.path(model, kind), **({"n_ctx": 128} | options))


@pytest.fixture(scope="module")
def llm():
    with open_tiny() as model:
        yield model


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def pair(request):
    """Yield two instances of one model: one to rewind, and one that only decodes forward."""
    path = tiny.path(*request.param)
    with npurt.Llama(path, **OPTIONS) as llm, npurt.Llama(path, **OPTIONS) as straight:
        yield llm, straight, tiny.ids(request.param[0])


@pytest.fixture
def hybrid():
    with npurt.Llama(tiny.path("qwen35", "f32"), **OPTIONS) as llm:
        yield llm


def drafted(drafter, history, maximum):
    """Return the tokens that *drafter* proposes."""
    return [token for token, _ in drafter.draft(history, maximum)]


def fresh(llm, prompt=PROMPT, **options):
    """Generate from an empty cache."""
    llm.reset()
    return llm.generate(prompt, **options)
