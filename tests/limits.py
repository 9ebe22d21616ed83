"""How long tests wait for what must happen: until it does, or has hung beyond doubt.

No test decides by these whether something is right or fast enough.  A machine under load takes many
times as long as an idle one, and nothing is lost by waiting longer for what comes anyway.
"""

import time

HANG_SECONDS = 600


def eventually(condition, seconds=HANG_SECONDS):
    """Wait until *condition* holds, and return whether it did."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
