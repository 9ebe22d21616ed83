"""Keys and values above the range of float16: the error names the remedy, and the remedy works."""

import numpy as np
import pytest

import npurt
from npurt.errors import NumericsError
from tests.llm import tiny

DEVICES = ["cpu", "hexagon:sim", "rknpu:sim", "numpy"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Return a model whose norms make keys and values of millions."""
    file = tiny.read(tiny.path("llama3", "q8_0"))
    contents = tiny.contents(file)
    for i, tensor in enumerate(file.tensors):
        if tensor.name.endswith("attn_norm.weight"):
            contents[i] = (np.frombuffer(contents[i], "<f4") * np.float32(1e6)).tobytes()
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    path.write_bytes(tiny.with_data(file, file.tensors, contents).encode())
    return path


def texts(path, device, **options):
    with npurt.Llama(path, device=device, n_ctx=64, progress=False, **options) as llm:
        for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 1}):
            yield llm.generate([5, 6, 7], max_tokens=3, **sampling)


@pytest.mark.parametrize("device", DEVICES)
def test_the_error_names_the_remedy_and_the_remedy_works(large, device):
    with pytest.raises(NumericsError) as caught:
        list(texts(large, device))
    assert "-ctk f32" in caught.value.remedy
    assert "kv_type='f32'" in caught.value.remedy
    assert all(texts(large, device, kv_type="f32"))


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 5}])
def test_every_way_to_sample_names_it(large, options):
    with (
        npurt.Llama(large, device="cpu", n_ctx=64, progress=False) as llm,
        pytest.raises(NumericsError) as caught,
    ):
        llm.generate([5, 6, 7], max_tokens=3, **options)
    assert "-ctk f32" in caught.value.remedy


def test_an_engine_names_it(large):
    with (
        npurt.Engine(large, "cpu", n_ctx=64, progress=False) as engine,
        pytest.raises(NumericsError) as caught,
    ):
        engine.submit([5, 6, 7], max_tokens=3).text()
    assert "-ctk f32" in caught.value.remedy
