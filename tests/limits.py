"""Set the timeouts of tests that wait for an event, long enough that only a hang exceeds them.

No test measures correctness or speed by these. A machine under load takes many times as long as an
idle one, and a long timeout costs nothing when the event comes.
"""

import signal
import threading
import time

HANG_SECONDS = 600
SOON = 0.05  # seconds to wait for an event that must not come


def eventually(condition, seconds=HANG_SECONDS):
    """Wait until *condition* holds, and return whether it did."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def interrupt(work, under_way, then=lambda: None):
    """Run *work* on this thread, send Ctrl-C once *under_way* is true, then run *then*.

    *work* must not return before *under_way* is true.
    """
    main = threading.get_ident()

    def press():
        if eventually(under_way):
            signal.pthread_kill(main, signal.SIGINT)
            then()

    thread = threading.Thread(target=press)
    thread.start()
    try:
        work()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("Ctrl-C did not interrupt the work")
    finally:
        thread.join()
