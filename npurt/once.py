"""`once`: a function whose result is made once in a process, whichever threads ask first.

With `functools.cache`, two threads that ask at the same time make two results.  Two plain values do
no harm.  But a result with an identity or a state must exist once: an opened library, for example,
or the list of sessions in use.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

A = TypeVarTuple("A")
R = TypeVar("R")


def once(make: Callable[[*A], R]) -> Callable[[*A], R]:
    """Return *make* so that it runs once for each set of arguments, and others wait for its result.

    The caller gets what *make* raises; nothing is kept, and the next call tries again.  A call from
    within the first one, as from a signal handler or a finalizer, cannot wait for it: it makes a
    second result.  All callers then get the result that is ready first.
    """
    made: dict[tuple[Any, ...], R] = {}
    # A lock for each process: in a fork, a lock that another thread held is never released.
    locks: dict[Any, threading.RLock] = {}

    @functools.wraps(make)
    def get(*args: *A) -> R:
        if args not in made:
            with locks.setdefault((os.getpid(), args), threading.RLock()):
                if args not in made:
                    made.setdefault(args, make(*args))
        return made[args]

    return get
