"""Common parts of questions to the mainline driver: their table, and answers in words."""

import errno
import struct
from collections.abc import Callable

from tests.sim_rknpu.client import CREATE_BO, Rocket
from tests.sim_rknpu.lists import Task

TASK = Task(4, 64, 64)
NOWHERE = 8  # an address that no process has
LONG = 100_000
# Linux 7.2 releases a job's buffers some time after it has signalled the fence, and then follows a
# pointer into memory of the file.  If the file is closed by then, the kernel may crash.
DRIVER_FREES_S = 0.1

CASES: dict[str, Callable[[Callable[[], Rocket]], str]] = {}


def case(function):
    """Make a question of a function whose argument is a function that opens a file."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def cases(**rows):
    """Make one question of every row; the row becomes the last argument of the function."""

    def make(function):
        for name, row in rows.items():
            label = f"{function.__name__}: {name}".replace("_", " ")
            CASES[label] = lambda opened, row=row: function(opened, row)
        return function

    return make


def said(call, *args):
    """Return "ok", the error's name, or the result of the call."""
    try:
        result = call(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok" if result is None or isinstance(result, bytes) else str(result)


def words(*answers):
    return ", ".join(map(str, answers))


def new(driver, size, request=CREATE_BO, left=24):
    """Create a buffer without mapping it; return (handle, address, offset)."""
    args = driver.ioctl(request, struct.pack("<IIQQ", size, 0, 0, 0)[:left])
    return struct.unpack("<IIQQ", args.ljust(24, b"\0"))[1:]


def sized(request, size):
    """Return *request* for an argument of *size* bytes."""
    return request & ~(0x3FFF << 16) | size << 16
