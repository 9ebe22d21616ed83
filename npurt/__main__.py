"""Run the command line of npurt; `python -m npurt` does the same."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C exits without a traceback even while modules are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # SIGINT is not ignored
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from npurt.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
