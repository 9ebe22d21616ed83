"""`python -m npurt` is the command `npurt`."""

import sys

from npurt.cli import main

if __name__ == "__main__":
    sys.exit(main())
