"""Tests of the verification of devices that run graphs: every op, on every device."""

import numpy as np
import pytest

import npurt
from npurt.device.verify import Mode, Sampler
from npurt.errors import VerificationFailed
from npurt.graph import ops
from npurt.graph.meaning import MEANING
from npurt.graph.rows import Rows
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF
from npurt.reference.device import ReferenceDevice
from npurt.reference.segment import ReferenceSegment
from npurt.runtime.execute.executor import Executor
from npurt.runtime.report.ledger import Ledger
from tests.llm import tiny
from tests.runtime.test_execute import LIMITS, MODELS, Partial

PRODUCTS = ops.MatMul | ops.ExpertMatMul
UNCHECKED = {ops.Route}  # its results are numbers of experts, and close scores may swap two


class Lying(Partial):
    """A device that changes one element of the result of one kind of op, once, in its third call.

    It changes a whole row of a product, because not all columns of a product are computed again.
    """

    def __init__(self, kind, once=True):
        super().__init__()
        self.kind, self.lies, self.once, self.calls = kind, 0, once, 0

    def compile(self, part, weights, limits):
        device = self

        def wrong(op, run):
            made = MEANING[type(op)](op, run)
            device.calls += 1
            if device.calls >= 3 and not (device.once and device.lies):
                device.lies += 1
                made = tuple(np.array(array) for array in made)
                row = made[-1].reshape(len(made[-1]), -1)[-1]
                first = 0 if isinstance(op, PRODUCTS) else -1
                row[first:] = -row[first:] + 3 * np.abs(row).max() + 1
            return made

        return ReferenceSegment(part, weights, limits, {self.kind: wrong})


def kinds(model):
    with GGUF(tiny.path(model, "q8_0")) as file:
        listed = describe(file).graph(64).graph.ops
    return dict.fromkeys(type(op) for op in listed if type(op) not in UNCHECKED)


def evaluated(device, model, mode=Mode.ALWAYS, other=None):
    """Return the logits of each token, the report and the executor."""
    ids, ledger = tiny.ids(model, 6), Ledger("test")
    with GGUF(tiny.path(model, "q8_0")) as file:
        graph = describe(file).graph(64)
        made = Executor(
            graph.graph, device, other or ReferenceDevice(), FileWeights(file, graph), LIMITS,
            ledger, checks=Sampler(mode),
        )  # fmt: skip
        y, at = [], 0
        while at < len(ids):
            found = made.run({"tokens": np.array(ids[at : at + 1])}, Rows.of(1, at))
            if found is None:  # the part that was wrong has moved, without its states
                made.forget(0)
                y, at = [], 0
            else:
                y.append(found["logits"])
                at += 1
    return np.concatenate(y), ledger.report(), made


@pytest.mark.parametrize(
    ("model", "kind"),
    [pytest.param(m, k, id=f"{m}-{k.__name__}") for m in MODELS for k in kinds(m)],
)
def test_one_wrong_element_of_any_op_is_found_and_computed_again(model, kind):
    want, honest, _ = evaluated(Partial(), model)
    device = Lying(kind)

    y, report, made = evaluated(device, model)

    assert device.lies == 1
    np.testing.assert_array_equal(y, want)
    assert sum(row.failed for row in report.rows) == 1
    assert sum(row.failed for row in honest.rows) == 0
    assert any("partial computed a wrong" in note for note in report.notes)
    assert [part.actual for part in made.parts] == ["numpy"]


def test_an_op_that_is_wrong_on_both_devices_is_an_error():
    with pytest.raises(VerificationFailed, match=r"computed a wrong norm .*, after another"):
        evaluated(Lying(ops.RMSNorm, once=False), "llama3", other=Lying(ops.RMSNorm, once=False))


def test_every_op_of_a_plug_in_is_verified():
    _, report, _ = evaluated(Partial(), "qwen3moe")

    rows = [row for row in report.rows if row.op != "route"]
    assert len(rows) > 20
    assert all(row.verified == row.calls for row in rows)


def test_sample_verifies_the_first_of_each_kind_and_a_hundredth_of_the_others():
    _, report, _ = evaluated(Partial(), "llama3", Mode.SAMPLE)

    for name in ("norm", "rope", "attention", "activation", "ffn_down", "output"):
        verified = sum(row.verified for row in report.rows if row.op == name)
        calls = sum(row.calls for row in report.rows if row.op == name)
        assert 1 <= verified < calls or calls == verified == 6 * (name == "output"), name


def test_off_verifies_nothing():
    _, report, _ = evaluated(Lying(ops.MatMul), "llama3", Mode.OFF)

    assert sum(row.verified for row in report.rows) == 0


def test_a_model_says_how_much_a_plug_in_has_verified():
    with npurt.Llama(tiny.path(), Partial(), n_ctx=64, progress=False, verify="always") as llm:
        llm.generate([1, 2, 3], max_tokens=4, temperature=0)
        line = llm.report().line()
    counts = line.rpartition("verified ")[2].split()
    assert counts[0] == counts[2]
    assert "0 wrong" in line
