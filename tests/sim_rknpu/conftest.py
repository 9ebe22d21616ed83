import pytest

from tests.sim_rknpu import client

DEFAULTS = (
    "reload=1 counters=0 strict=1 coherent=1 cores=3 log=0 hang_ms=1 guard=1 "
    "iova_base=0x10000000 version=908 nodes=accel0,renderD128,card1 rocket_mhz=200 rknpu_mhz=1000 "
    "total_gbs=27.5 memory=0 space=0"
)


@pytest.fixture(autouse=True)
def simulator():
    """Reset the simulator for every test: no faults, no counts, and hangs that end at once."""
    client.configure(DEFAULTS)


@pytest.fixture(params=[client.Rocket, client.Rknpu], ids=["rocket", "rknpu"])
def driver(request):
    """Open each driver in turn."""
    with request.param() as opened:
        yield opened
