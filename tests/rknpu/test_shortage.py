"""Test shortages of memory: weights that do not fit the NPU run on the CPU, and nothing fails."""

import numpy as np
import pytest

import npurt
from npurt.rknpu.device import arena
from npurt.rknpu.device.device import open_rknpu
from npurt.rknpu.device.multiply import prepared_below, rows_prepared
from tests.llm import reference, tiny
from tests.rknpu.conftest import STRICT
from tests.rknpu.test_device import NAMES, assert_exact, inputs, multiply, tensor

LAYERS = 6
IDS = tiny.ids("llama3-256", 60)
FREE = f"reload=1 {STRICT} memory=0 space=0"


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """Return a model of six layers, copied from a smaller model, with an output matrix."""
    file = tiny.with_layers(tiny.read(tiny.path("llama3-256", "q4_k_m")), LAYERS)
    return tiny.write(file, tmp_path_factory.mktemp("deep"))


@pytest.fixture(params=NAMES)
def name(request, simulator):
    simulator.set(FREE)
    yield request.param
    simulator.set(FREE)


def spaces_of(llm):
    driver = llm.device._driver
    return list(dict.fromkeys(driver.spaces))


def weight_bytes(space):
    spans = [span for span in space.spans if span.name.startswith("weight")]
    return sum(span.end - span.start for span in spans)


def logits(llm):
    """Return the logits of a prompt, of single tokens, and of a batch of another size."""
    llm.reset()
    parts = [llm.eval(IDS[:40]), *(llm.eval([i]) for i in IDS[40:45]), llm.eval(IDS[45:])]
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def exact(deep):
    return reference.logits(deep, IDS)


@pytest.fixture(scope="module")
def usual(deep, exact, simulator):
    """Return the largest error of the logits on the CPU, and on NPUs with enough memory."""
    simulator.set(FREE)
    found = []
    for name in ("cpu", *NAMES):
        with npurt.Llama(deep, name, n_ctx=64, progress=False) as llm:
            found.append(reference.nmse(logits(llm), exact))
    return max(found)


def share(llm):
    """Return the fraction of multiply-adds that ran on the NPU."""
    rows = llm.report().rows
    return sum(r.macs for r in rows if r.actual != "cpu") / sum(r.macs for r in rows)


def fallbacks(llm):
    return llm.report().line().split(";")[1].strip()


def check(llm, exact, usual):
    """Check that the logits are right, that no verification failed, and that nothing fell back."""
    assert reference.nmse(logits(llm), exact) < 1.25 * usual
    assert fallbacks(llm) == "0 fallbacks"
    assert llm.report().fallbacks() == []
    assert ", 0 wrong" in llm.report().line()


def planned(llm):
    """Return the layers that are on the NPU, and whether the output matrix is there."""
    there = {row.tensor for row in llm.report().rows if row.macs and row.actual != "cpu"}
    layers = {name.split(".")[1] for name in there if name.startswith("blk.")}
    for layer in layers:  # all weights of the layer are on the NPU
        assert sum(name.startswith(f"blk.{layer}.") for name in there) == 7
    return len(layers), "output" in there


@pytest.mark.parametrize("fits", [0.7, 0.35])
def test_what_fits_is_on_the_npu_and_the_rest_on_the_cpu(name, simulator, deep, exact, usual, fits):
    """The address space fits all buffers of products, and the fraction *fits* of the weights."""
    with npurt.Llama(deep, name, n_ctx=64, progress=False) as llm:
        weights = max(map(weight_bytes, spaces_of(llm)))
        work = max(space.used - weight_bytes(space) for space in spaces_of(llm))
    limit = work + int(fits * weights)
    simulator.set(f"space={limit}")

    with npurt.Llama(deep, name, n_ctx=64, verify="always", progress=False) as llm:
        check(llm, exact, usual)
        layers, output = planned(llm)
        assert share(llm) >= fits - 1.5 / (LAYERS + 1)
        assert 0 < layers + output < LAYERS + 1
        (note,) = [each for each in llm.report().notes if "has space for" in each]
        assert f"has space for {7 * layers + output} of {7 * LAYERS + 1} weights" in note
        assert "To place more on rknpu" in note
        assert str(llm.report()).count("has space for") == 1


@pytest.mark.parametrize("creates", [40, 100])
def test_a_driver_that_makes_no_more_buffers_has_what_it_made(
    name, simulator, deep, exact, usual, creates
):
    simulator.set(f"fault=enomem@create:{creates}+")

    with npurt.Llama(deep, name, n_ctx=64, verify="always", progress=False) as llm:
        check(llm, exact, usual)
        layers, output = planned(llm)
        made = sum(len(space.spans) for space in spaces_of(llm))
        assert made < creates
        rest = (creates - 1 - made) // 3  # a weight needs a buffer on each of three cores
        assert rest < 7 or layers == LAYERS
        assert layers + output == 0 or share(llm) > 0.9 * (7 * layers + output) / (7 * LAYERS + 1)


def test_memory_that_shrinks_later_costs_nothing_that_was_planned(
    name, simulator, deep, exact, usual
):
    """All buffers of products are allocated at the start, also for new numbers of rows."""
    with npurt.Llama(deep, name, n_ctx=64, verify="always", progress=False) as llm:
        simulator.set("memory=1 fault=enomem@create:1+")
        check(llm, exact, usual)
        assert share(llm) == 1
        for rows in (2, 3, 17, 33, 50):
            llm.reset()
            llm.eval(IDS[:rows])
        assert fallbacks(llm) == "0 fallbacks"


@pytest.mark.parametrize("fits", [0.5, 0.0])
def test_a_device_that_comes_back_with_less_memory_keeps_what_fits(name, simulator, deep, fits):
    with npurt.Llama(deep, name, n_ctx=64, verify="always", progress=False) as llm:
        wanted = logits(llm)
        memory = sum(space.used for space in spaces_of(llm))
        simulator.set(f"memory={int(fits * memory) or 1} fault=eio@submit")

        np.testing.assert_array_equal(logits(llm), wanted)
        before = {row.tensor: row.calls for row in llm.report().rows if row.actual == "cpu"}
        np.testing.assert_array_equal(logits(llm), wanted)
        report = llm.report()

    assert ", 0 wrong" in report.line()
    moved = {row.tensor for row in report.rows if row.macs and row.actual == "cpu"}
    # No further weight moves in the second run.
    assert moved == {tensor for tensor in before if tensor}
    assert len(moved) < 7 * LAYERS + 1 or fits == 0
    assert len(report.fallbacks()) == 1  # one reason for any number of weights
    assert f"{name} ran out of memory" in report.fallbacks()[0]
    notes = [note for note in report.notes if "ran out of memory while it worked" in note]
    assert len(notes) == 1
    assert "To keep more on rknpu" in notes[0]


def test_without_room_for_single_rows_the_cpu_has_all_for_one_reason(
    name, simulator, deep, exact, usual
):
    simulator.set("space=32K")

    with npurt.Llama(deep, name, n_ctx=64, verify="always", progress=False) as llm:
        check(llm, exact, usual)
        assert share(llm) == 0
        assert sum(space.used for space in spaces_of(llm)) == 0
        assert f"has space for 0 of {7 * LAYERS + 1} weights" in "".join(llm.report().notes)


def test_a_strict_model_that_does_not_fit_is_refused(name, simulator, deep):
    simulator.set("space=1M")

    with pytest.raises(npurt.NotOffloaded, match="no space for"):
        npurt.Llama(deep, name, n_ctx=64, strict=True, progress=False)


# --- IOMMU domains ------------------------------------------------------------------------------


@pytest.fixture
def vendor(simulator, monkeypatch):
    simulator.set(FREE)
    monkeypatch.setattr(arena, "ADDRESSES", 0)
    yield "rknpu:sim-vendor"
    simulator.set(FREE)


def test_a_model_that_does_not_fit_one_domain_is_in_several(vendor, simulator, deep, exact, usual):
    """Domains use the same addresses; the device switches domains a few times per token."""
    with npurt.Llama(deep, vendor, n_ctx=64, progress=False) as llm:
        whole = logits(llm)
        used = llm.device._driver._space.used
    simulator.set(f"space={used * 2 // 3}")

    with npurt.Llama(deep, vendor, n_ctx=64, verify="always", progress=False) as llm:
        check(llm, exact, usual)
        assert share(llm) == 1
        np.testing.assert_array_equal(logits(llm), whole)
        domains = llm.device._driver._others
        assert 1 <= len(domains) <= 3
        simulator.set("counters=0")
        llm.eval_last([1])
        switches = simulator.report()["domain_switches"]
        assert 1 <= switches <= 4 * (len(domains) + 1)
    assert all(space.fd < 0 for space in domains)


def test_a_lost_device_gets_its_domains_again(vendor, simulator, deep):
    with npurt.Llama(deep, vendor, n_ctx=64, progress=False) as llm:
        simulator.set(f"space={llm.device._driver._space.used * 2 // 3}")
    with npurt.Llama(deep, vendor, n_ctx=64, progress=False) as llm:
        before = logits(llm)
        simulator.set("fault=eio@submit")
        np.testing.assert_array_equal(logits(llm), before)
        assert llm.device._driver._others
        assert share(llm) == 1
        assert "opened again" in "".join(llm.report().notes)


@pytest.mark.parametrize(
    ("version", "minimum", "domains"), [(907, 0, 0), (908, 1 << 28, 0), (908, 0, 15)]
)
def test_further_domains_are_opened_where_there_are_some_and_addresses_are_short(
    simulator, monkeypatch, version, minimum, domains
):
    monkeypatch.setattr(arena, "ADDRESSES", minimum)
    simulator.set(f"{FREE} version={version} space=48K")  # work 24, weights 12 each
    try:
        with open_rknpu("rknpu:sim-vendor") as device:
            held = [device.pack(tensor(96, 96)) for _ in range(2 * (domains + 1))]
            assert len(device._driver._others) == domains
            with pytest.raises(npurt.DeviceFull, match="no space"):
                device.pack(tensor(96, 96))
            for w in held:  # memory for products of one row was reserved
                assert_exact(device, inputs(1, 96), w, multiply(device, inputs(1, 96), w))
    finally:
        simulator.set(f"{FREE} version=908")


# --- Products -----------------------------------------------------------------------------------


def test_half_of_the_rows_are_prepared_too():
    assert [prepared_below(n) for n in (1, 2, 3, 16, 32, 48, 96, 192, 512)] == [
        0,
        1,
        1,
        8,
        16,
        16,
        48,
        96,
        256,
    ]
    assert all(rows_prepared(prepared_below(n)) == prepared_below(n) for n in range(2, 513))


def test_products_have_fewer_rows_at_once_when_memory_is_short(name, simulator):
    """No memory was reserved; rows are rounded separately, so smaller batches change no result."""
    with open_rknpu(name) as device:
        packed = device.pack(tensor(512, 256))
        x = inputs(300, 256)
        used = max(space.used for space in device._driver.spaces)
        simulator.set(f"space={used + (320 << 10)}")

        y = multiply(device, x, packed)

        assert_exact(device, x, packed, y)
        assert 1 <= device._weights.short[(packed.number,)] < 300
        assert np.array_equal(multiply(device, x[:5], packed), y[:5])


def test_prepared_calls_give_way_to_others_when_memory_is_short(name, simulator):
    """The least recently used calls are freed first, and prepared again when they are needed."""
    with open_rknpu(name) as device:
        packed = [device.pack(tensor(64, k)) for k in (64, 96, 128)]
        wanted = [multiply(device, inputs(1, w.k), w) for w in packed]
        for space in dict.fromkeys(device._driver.spaces):
            for chunks in space._chunks.values():
                for _, ranges in chunks:  # stands for other jobs, which use the rest
                    while ranges.allocate(64) is not None:
                        pass
        simulator.set("fault=enomem@create:1+")

        x = inputs(2, 64)
        assert_exact(device, x, packed[0], multiply(device, x, packed[0]))
        kept = [numbers for numbers, _ in device._weights.calls.made]
        assert kept == [(w.number,) for w in (*packed[1:], packed[0])]
        for w, y in zip(packed, wanted, strict=True):
            np.testing.assert_array_equal(multiply(device, inputs(1, w.k), w), y)
        assert len(device._weights.calls.made) == 3
