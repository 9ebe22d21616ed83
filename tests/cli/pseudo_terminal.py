"""A program on a pseudo-terminal, with its keys."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

from tests.cli.conftest import environment

WAIT = 30  # seconds; nothing here takes one
# Makes the pseudo-terminal the one whose keys send signals, then becomes the program.
# What runs in the background of a shell ignores Ctrl-C, and hands that down: undo it.
TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """A program on a pseudo-terminal, and what it has written there."""

    def __init__(self, *arguments, program=("-m", "npurt"), size=(80, 24), **variables):
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, size[::-1])
        command = [sys.executable, "-c", TAKE_TERMINAL, *map(str, (*program, *arguments))]
        env = environment(**variables)
        for name in {"COLUMNS", "LINES"} - variables.keys():
            env.pop(name, None)  # of the terminal of the tests, which would count for more
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=env
        )
        os.close(slave)
        self.screen = ""

    def type(self, keys):
        os.write(self._master, keys.encode())

    def wait_for(self, pattern):
        """Return the match of *pattern* in what appears from now on, and forget up to its end."""
        end = time.monotonic() + WAIT
        while not (match := re.search(pattern, self.screen, re.DOTALL)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.screen!r}"
            assert self._read(), f"ended without {pattern!r}: {self.screen!r}"
        self.screen = self.screen[match.end() :]
        return match

    def press_until(self, key, pattern):
        """Press *key* until *pattern* appears: Python may miss a signal just before it waits."""
        for _ in range(WAIT):
            self.type(key)
            for _ in range(4):
                self._read()
                if re.search(pattern, self.screen, re.DOTALL):
                    return self.wait_for(pattern)
        raise AssertionError(f"no {pattern!r} in {self.screen!r}")

    def _read(self):
        """Add to the screen; False at the end of the program."""
        if not select.select([self._master], [], [], 0.5)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)

    def end(self):
        """Read to the end and return the exit status."""
        while self._read():
            pass
        return self._process.wait(timeout=WAIT)

    def close(self):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)
