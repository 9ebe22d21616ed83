"""Compile your own skel, and call it from Python with numpy arrays.

python examples/own_skel/run.py              # the simulated DSP
python examples/own_skel/run.py --real       # libcdsprpc of this system

To compile the skel on the command line:

npurt skel build examples/own_skel/vectors.c --idl examples/own_skel/vectors.idl
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from npurt.hexagon import idl
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.session.own_skel import OwnSkel, build

HERE = Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="use the system's libcdsprpc")
    args = parser.parse_args()
    library = lib.find() if args.real else lib.load([lib.simulator()])
    interface = idl.load(HERE / "vectors.idl")
    a = np.arange(-500, 500, dtype=np.int16) * 60
    b = np.full(1000, 7000, np.int16)
    with tempfile.TemporaryDirectory() as folder:
        skel = build([HERE / "vectors.c"], interface, Path(folder, "libvectors_skel.so"))
        with OwnSkel(library, skel, interface) as vectors:
            (total,) = vectors.call("add", a, b, len(a))
    expected = np.clip(a.astype(int) + b, -32768, 32767)
    print(f"sums that are right: {np.count_nonzero(np.asarray(total) == expected)} of {len(a)}")


if __name__ == "__main__":
    main()
