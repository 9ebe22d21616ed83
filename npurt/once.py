"""`once`: a function whose result is made once in a process, whichever threads ask first.

`functools.cache` has two threads that ask at the same time make a result each.  That does no harm
where results are plain values; of what has an identity or a state, such as an opened library or the
list of sessions in use, there must be one.
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

    What it raises goes to the caller and is not kept: the next call tries again.  A call that
    comes from within the first, as from a signal handler or a finalizer, cannot wait for it: it
    makes a result of its own, and the one that is ready first is what everybody gets.
    """
    made: dict[tuple[Any, ...], R] = {}
    # By process too: a lock that another thread held is held for ever in a fork.
    locks: dict[Any, threading.RLock] = {}

    @functools.wraps(make)
    def get(*args: *A) -> R:
        if args not in made:
            with locks.setdefault((os.getpid(), args), threading.RLock()):
                if args not in made:
                    made.setdefault(args, make(*args))
        return made[args]

    return get
