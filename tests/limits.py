"""How long tests wait for what must happen: until it does, or has hung beyond doubt.

No test decides by these whether something is right or fast enough.  A machine under load takes many
times as long as an idle one, and nothing is lost by waiting longer for what comes anyway.
"""

import signal
import threading
import time

import pytest

HANG_SECONDS = 600
SOON = 0.05  # seconds for what never comes: a wait that shall end without it


def eventually(condition, seconds=HANG_SECONDS):
    """Wait until *condition* holds, and return whether it did."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def interrupt(work, under_way, then=lambda: None):
    """Do *work* on this thread, press Ctrl-C once *under_way* holds, and do *then*.

    *work* must last until then.
    """
    main = threading.get_ident()

    def press():
        if eventually(under_way):
            signal.pthread_kill(main, signal.SIGINT)
            then()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    thread.join()
