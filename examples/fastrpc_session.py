"""Open a FastRPC session, call a method of the skel, and share memory with the DSP.

python examples/fastrpc_session.py               # the simulated DSP
python examples/fastrpc_session.py --real        # libcdsprpc of this system
"""

import argparse

from npurt.hexagon.fastrpc import control, lib
from npurt.hexagon.session import NONCE_MASK, Session


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--real", action="store_true", help="use the system's libcdsprpc")
    args = parser.parse_args()
    library = lib.find() if args.real else lib.load([lib.simulator()])
    print(f"the DSP says: {control.capabilities(library)}")
    session = Session.open(library, deadline=60)
    try:
        print(f"the skel says: {session.info}")
        (answer,) = session.call("echo", 42)
        print(f"echo of 42: {answer ^ NONCE_MASK}")
        block = session.allocate(4096)
        block.array[:] = 7
        print(f"{block.nbytes} bytes are shared, descriptor {block.fd}")
        session.free(block)
    finally:
        session.close()


if __name__ == "__main__":
    main()
