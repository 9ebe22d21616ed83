"""The command `npurt`, also as `python -m npurt`."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C ends the program quietly even while modules are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is not ignored
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from npurt.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
