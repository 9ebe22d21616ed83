"""Run a program on a pseudo-terminal and press keys there."""

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

WAIT = 30  # seconds; each step of these tests takes less than one
# This program makes the pseudo-terminal its controlling terminal and then executes the command.
# A shell's background processes ignore SIGINT, and their children inherit this: it is undone here.
TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """A program on a pseudo-terminal, and the output that it has written there."""

    def __init__(self, *arguments, program=("-m", "npurt"), size=(80, 24), **variables):
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, size[::-1])
        command = [sys.executable, "-c", TAKE_TERMINAL, *map(str, (*program, *arguments))]
        env = environment(**variables)
        for name in {"COLUMNS", "LINES"} - variables.keys():
            env.pop(name, None)  # size of the tests' own terminal, which would take precedence
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=env
        )
        os.close(slave)
        self.screen = ""

    def type(self, keys):
        os.write(self._master, keys.encode())

    def wait_for(self, pattern):
        """Return the match of *pattern* in new output, and discard the output up to its end."""
        end = time.monotonic() + WAIT
        while not (match := re.search(pattern, self.screen, re.DOTALL)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.screen!r}"
            assert self._read(), f"ended without {pattern!r}: {self.screen!r}"
        self.screen = self.screen[match.end() :]
        return match

    def press_until(self, key, pattern):
        """Press *key* until *pattern* appears; Python may miss a signal just before it waits."""
        for _ in range(WAIT):
            self.type(key)
            for _ in range(4):
                self._read()
                if re.search(pattern, self.screen, re.DOTALL):
                    return self.wait_for(pattern)
        raise AssertionError(f"no {pattern!r} in {self.screen!r}")

    def _read(self):
        """Append new output to the screen; return False once the program has ended."""
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
