"""The kernels load and store VTCM at multiples of 128 bytes: a DSP may refuse other addresses.

With the setting `vtcm_traps=1`, any other vector access to VTCM ends the process in the simulator.
"""

import shutil

import numpy as np
import pytest

from npurt.errors import DeviceLost
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.layout.formats import FORMATS
from npurt.hexagon.session import skel
from npurt.hexagon.session.messages import OpFlag
from tests.cpu.delta_nets import net_of
from tests.hexagon.delta_nets import run
from tests.hexagon.dsp import Dsp, rows, simulated, weights
from tests.hexagon.simulator import connection
from tests.hexagon.weights import columns, groups, weight
from tools.build import hexagon

ROWS = 66  # from 64 rows on, the tiles of a product are copied to VTCM
TOKENS = 5  # from 4 tokens on, the states of a delta net are copied to VTCM
NETS = [
    {"heads": 2, "width": 16, "tokens": TOKENS},
    {"heads": 3, "width": 128, "tokens": TOKENS, "sequences": 2, "kda": True},
    {"heads": 4, "width": 80, "tokens": TOKENS, "repeat": 2, "grouped": True},
]


def every_product(dsp, arch):
    """Multiply rows by weights of every format that *arch* has, in every grouping; return all y."""
    results = {}
    for fmt in FORMATS:
        k, n = columns(fmt.name, 160), 45
        image = weight(np.random.default_rng(7), fmt.name, n, k).view(np.uint8).reshape(-1)
        for group in groups(fmt.name) if fmt.arch <= arch else ():
            dsp.used = 0
            w, x = dsp.allocate(image.size), dsp.put(rows(3, ROWS, columns(fmt.name, 160)))
            dsp.bytes(w)[:] = image
            y = dsp.allocate(4 * n * ROWS) | {"stride": 4 * n}
            op = {"flags": OpFlag.NEW_W, "m": ROWS, "k": k, "n": n, "format": fmt.number}
            (results[fmt.name, group],) = dsp.run(op | {"group": group, "x": x, "w": w, "y": y})
    return results


@pytest.mark.parametrize("arch", [68, 81])
def test_no_product_accesses_vtcm_unaligned(arch):
    results = []
    for settings in (f"arch=v{arch} vtcm_traps=1", f"arch=v{arch} vtcm=0"):
        with simulated(settings) as session:
            assert bool(session.info.vtcm_bytes) == ("traps" in settings)
            results.append(every_product(Dsp(session), arch))
    trapped, plain = results
    assert len(trapped) == len(plain) > 30
    for key, y in trapped.items():
        np.testing.assert_array_equal(y, plain[key], err_msg=str(key))


@pytest.mark.parametrize("arch", [68, 81])
def test_no_delta_net_accesses_vtcm_unaligned(arch, simulator):
    outs = []
    for settings in (f"arch=v{arch} vtcm_traps=1", f"arch=v{arch} vtcm=0"):
        with HexagonDevice("hexagon:test", connection(simulate=settings)) as device:
            outs.append([run(device, net_of(shape)) for shape in NETS])
    for trapped, plain in zip(*outs, strict=True):
        np.testing.assert_array_equal(trapped.out, plain.out)
        np.testing.assert_array_equal(trapped.state, plain.state)


CHANGES = {
    "store": ("HVX_Vector *out = (HVX_Vector *) to;", "HVX_UVector *out = (HVX_UVector *) to;"),
    "load": (
        "const HVX_Vector *in = (const HVX_Vector *) from;",
        "const HVX_UVector *in = (const HVX_UVector *) from;",
    ),
}
MOVED = ("char *slot = run->vtcm->address +", "char *slot = run->vtcm->address + 64 +")


@pytest.fixture(scope="module", params=CHANGES)
def unaligned(request, tmp_path_factory):
    """Return a folder with skels of which one store, or one load, of execute.c is unaligned."""
    folder = tmp_path_factory.mktemp("unaligned")
    dsp = shutil.copytree(hexagon.DSP, folder / "dsp", ignore=lambda *_: ["reference"])
    source = (dsp / "execute.c").read_text()
    for old, new in (CHANGES[request.param], MOVED):
        assert old in source
        source = source.replace(old, new)
    (dsp / "execute.c").write_text(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hexagon, "DSP", dsp)
        hexagon.build_skels(folder, ["v68"])
    return request.param, folder


def test_one_unaligned_access_ends_the_process(unaligned, monkeypatch):
    """This shows that the tests of this file can fail."""
    kind, folder = unaligned
    monkeypatch.setattr(skel, "FOLDER", folder)
    if kind == "store":
        with simulated("vtcm_traps=1") as session:
            dsp = Dsp(session)
            op = dsp.product(rows(0, ROWS, 128), weights(1, 40, 128))
            with pytest.raises(DeviceLost):
                dsp.run(op)
        return
    net = net_of(NETS[0])  # its state is copied back from VTCM
    device = HexagonDevice("hexagon:test", connection(simulate="vtcm_traps=1"))
    with device, pytest.raises(DeviceLost):
        run(device, net)
