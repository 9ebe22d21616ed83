"""Test logits of whole models with every product on the simulated DSP: as exact as the CPU's.

Both round activations to int8 with a scale per 32; the CPU also rounds the remainders of some
inputs, and the DSP does not.  The expected error of each device is that of a decoder in float64
with the same rounding, as in tests/llm/test_logits.py.  Two devices that round differently differ
by the sum of both errors.
"""

import pytest

import npurt
from tests.llm import reference, tiny
from tests.llm.reference import nmse
from tests.llm.test_logits import NOISE

FILES = [
    *(("llama3-256", kind) for kind in ("q4_0", "q4_1", "q4_k_m", "q6_k", "q8_0", "iq4_nl")),
    ("qwen2", "q8_0"),
    ("qwen3", "q8_0"),
]


def logits(model, kind, device):
    """Return the logits of forty ids, and the report."""
    options = {"n_ctx": 64, "kv_type": "f32", "progress": False, "verify": "always"}
    with npurt.Llama(tiny.path(model, kind), device, **options) as llm:
        return llm.eval(tiny.ids(model, 40)), llm.report()


@pytest.mark.parametrize(("model", "kind"), FILES)
def test_a_models_logits_have_the_noise_of_int8_activations_and_no_more(model, kind, simulator):
    path, ids = tiny.path(model, kind), tiny.ids(model, 40)
    exact = reference.logits(path, ids)
    int16 = nmse(reference.logits(path, ids, rounding=reference.int8), exact)
    plain = reference.logits(path, ids, rounding=lambda x, int16: reference.int8(x, False))
    noise = nmse(plain, exact)

    on_dsp, report = logits(model, kind, "hexagon:sim")
    on_cpu, _ = logits(model, kind, "cpu")

    assert {row.actual for row in report.rows if row.macs} == {"hexagon:sim"}
    assert nmse(on_dsp, exact) < NOISE * noise
    assert nmse(on_dsp, on_cpu) < NOISE * (noise + int16)
