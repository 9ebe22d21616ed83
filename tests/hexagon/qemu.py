"""A program for the Hexagon under qemu-hexagon, given jobs one after another."""

import subprocess

from tests.limits import HANG_SECONDS
from tools.build import hexagon

NEWEST = 73  # the newest architecture of qemu, used for later programs too


class Program:
    """A running qemu-hexagon program, compiled for *arch* from *sources* to the file *path*."""

    def __init__(self, arch, path, sources):
        program = hexagon.compile_program(sources, path, arch=arch)
        cpu = f"v{min(int(arch[1:]), NEWEST)}"
        self.process = subprocess.Popen(
            ["qemu-hexagon", "-cpu", cpu, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self):
        """End the program; its end is no error."""
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(timeout=HANG_SECONDS) == 0

    def send(self, job):
        """Write the bytes of a job."""
        self.process.stdin.write(job)
        self.process.stdin.flush()

    def read(self, nbytes):
        """Return the next bytes of its answer."""
        data = self.process.stdout.read(nbytes)
        assert len(data) == nbytes, f"the driver ended with {self.process.wait()}"
        return data
