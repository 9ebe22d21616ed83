"""Tests of models and contexts that are used without `Llama`."""

import gc
import weakref

import numpy as np
import pytest

import npurt
from npurt.device.verify import Mode, Sampler
from npurt.errors import ModelFormatError, SettingError
from npurt.llm.session.context import Context
from npurt.llm.session.devices import Devices
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.session.setup import set_up
from tests.llm import tiny

IDS = tiny.ids("llama3", 20)


def model_of(file, devices, n_ctx=64):
    setup = set_up(file, n_ctx, 8, "f16")
    return LoadedModel(setup, devices, Sampler(Mode.OFF), strict=False, progress=False)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_context_gives_the_logits_of_llama_and_ends_with_its_model(device):
    path = tiny.path("llama3", "q8_0")
    with npurt.GGUF(path) as file, Devices(device, 1) as devices:
        with model_of(file, devices) as model:
            context = Context(model)
            y = context.eval(IDS)
            context.rewind(7)
            last = context.eval_last(IDS[7:]).copy()
        assert context.n_tokens == len(IDS)
        for call in (lambda: context.eval([1]), context.snapshot, lambda: context.state):
            with pytest.raises(SettingError, match="this model is closed"):
                call()

    with npurt.Llama(path, device, n_ctx=64, n_batch=8, n_threads=1, progress=False) as llm:
        np.testing.assert_array_equal(llm.eval(IDS), y)
        llm.rewind(7)
        np.testing.assert_array_equal(llm.eval_last(IDS[7:]), last)


def test_no_part_of_a_model_refers_back():
    """A part is released with the last reference to it; parts that it refers to remain usable."""
    llm = npurt.Llama(tiny.path(), n_ctx=64, n_threads=1, progress=False, draft="lookup")
    context, gone = llm.context, [weakref.ref(x) for x in (llm, llm.generator, llm.speculator)]
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
    assert np.isfinite(context.eval(IDS)).all()


def test_what_a_file_says_is_checked_before_a_device_is_opened(tmp_path):
    file = tiny.without_key(tiny.read(tiny.path()), "llama.block_count")
    path = tiny.write(file, tmp_path, "broken.gguf")
    with npurt.GGUF(path) as opened, pytest.raises(ModelFormatError, match="block_count"):
        set_up(opened, 64, 8, "f16")
