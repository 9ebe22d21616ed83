"""Fixtures that open one small model through npurt and through both compat interfaces."""

import pytest

import npurt
from npurt.compat.llama_cpp import Llama
from npurt.compat.mlx_lm import load
from tests.llm import tiny


@pytest.fixture(scope="module")
def llm():
    with Llama(model_path=str(tiny.path()), n_gpu_layers=-1, verbose=False) as model:
        yield model


@pytest.fixture(scope="module")
def pair():
    model, tokenizer = load(tiny.path(), n_ctx=512, progress=False)
    with model:
        yield model, tokenizer


@pytest.fixture(scope="module")
def own():
    with npurt.Llama(tiny.path(), n_ctx=512, progress=False) as model:
        yield model
