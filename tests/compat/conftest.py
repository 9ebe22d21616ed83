"""One small model, as mlx-lm opens it and as npurt does."""

import pytest

import npurt
from npurt.compat.mlx_lm import load
from tests.llm import tiny


@pytest.fixture(scope="module")
def pair():
    model, tokenizer = load(tiny.path(), n_ctx=512, progress=False)
    with model:
        yield model, tokenizer


@pytest.fixture(scope="module")
def own():
    with npurt.Llama(tiny.path(), n_ctx=512, progress=False) as model:
        yield model
