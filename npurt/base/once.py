"""Cache the result of a function once per process, also when several threads call it at once.

With `functools.cache`, two threads that call a function at the same time compute two results.  For
plain values that is harmless.  But a result with an identity or a state, such as an opened library
or the list of sessions in use, must exist only once.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

A = TypeVarTuple("A")
R = TypeVar("R")


def once(make: Callable[[*A], R]) -> Callable[[*A], R]:
    """Wrap *make* so that it runs once for each set of arguments, while other threads wait.

    An exception of *make* reaches the caller and is not cached: the next call runs *make* again.  A
    nested call in the same thread, as from a signal handler or a finalizer, cannot wait for the
    first call, so it runs *make* too.  All callers then get the result that is ready first.
    """
    made: dict[tuple[Any, ...], R] = {}
    # Each process has its own locks: after a fork, a lock that another thread held stays locked.
    locks: dict[Any, threading.RLock] = {}

    @functools.wraps(make)
    def get(*args: *A) -> R:
        if args not in made:
            with locks.setdefault((os.getpid(), args), threading.RLock()):
                if args not in made:
                    made.setdefault(args, make(*args))
        return made[args]

    return cast(Callable[[*A], R], functools.cache(get))  # skips `get` once it has a result
