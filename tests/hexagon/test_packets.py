"""Compare the packets that npurt/hexagon/plan predicts with those that the simulator executes."""

import pytest

from bench.hexagon_kernels import ARCHS, loops
from npurt.device.device import MatMul
from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import FORMATS
from npurt.hexagon.plan import packets
from npurt.hexagon.plan.cost import Q6A, call_seconds
from npurt.runtime.api.bench import bench_matmul
from tests.hexagon.kernels import Driver

KERNELS = {fmt.kernel: fmt.name for fmt in FORMATS}
FIXED = 10  # differences of kernels from packets.FIXED
ROW = 100  # deviation of quantising a row of up to 2304 columns from a linear function
# rows, columns and rows of w, with partial tiles, odd steps and several calls of the kernels
SHAPES = [(1, 768, 576), (4, 2304, 256), (7, 1536, 1536), (32, 256, 96), (128, 768, 416)]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_loops_take_the_packets_of_the_table(arch, tmp_path):
    """Counts are exact; after an intended change, run python bench/hexagon_kernels.py --model."""
    driver = Driver(arch, tmp_path)
    for kernel, name in KERNELS.items():
        each, fixed = loops(driver, name)
        assert each == packets.STEPS[kernel][arch != "v68"], kernel
        for mine, its in zip(packets.FIXED, fixed, strict=True):
            assert abs(mine - its) <= FIXED, kernel
    driver.close()
    assert packets.STEPS.keys() == KERNELS.keys()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k", "iq4_nl", "f16"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_a_product_takes_the_packets_that_are_said(arch, name, m, k, n):
    """The bound covers the differences of constants, a tenth of a batch, and copies to VTCM."""
    cost = packets.product(MatMul(m, k, n, name), int(arch[1:]))
    counted = bench_matmul(m, k, n, name, device=f"hexagon:sim-{arch}", repetitions=1)

    tiles, panels, rows = -(-n // images.TILE), m // packets.PANEL, m % packets.PANEL
    bound = FIXED * tiles * (panels + rows) + ROW * m + (packets.BATCH + packets.OP) / 10
    bound += cost.weight_bytes / images.VECTOR if m >= 64 else 0
    said = packets.BATCH + cost.quantise + cost.multiply
    assert abs(said - counted["packets"]) <= bound
    assert cost.weight_bytes == counted["bytes"]


def test_more_products_of_one_x_quantise_it_once():
    op = MatMul(4, 768, 576, "q4_0")
    one, more = packets.product(op, 68), packets.product(op, 68, same_x=True)

    assert more == one._replace(quantise=0, other_bytes=4 * 4 * 576)


def test_a_call_lasts_as_long_as_its_bytes_or_its_packets():
    """The time of one row is that of the memory; that of many rows is that of the packets."""
    speed = Q6A.speeds[1]
    extra = speed.call_s + speed.host_s

    one, many = (call_seconds([MatMul(m, 1536, 8960, "q8_0")], Q6A, speed) for m in (1, 128))

    weights = images.image_bytes(packets.formats.BY_NAME["q8_0"], 8960, 1536)
    assert one - extra == pytest.approx(weights / speed.bytes_s, rel=0.01)
    rate = Q6A.threads * Q6A.clock_hz / speed.packet_cycles
    macs = 128 * 1536 * 8960
    assert 180 < macs / ((many - extra) * rate) < 190  # a packet, of v68: bench/RESULTS.md
