"""Test the replacement of FastRPC's driver with hexagonrpcd, a daemon that serves files to DSPs.

hexagonrpcd (GPL-3.0+, Debian's package) has its own code for the driver's requests and for the
messages between the DSP and the CPU.  It runs under qemu-aarch64, and attaches to the simulated
node as on a board; then the DSP reads a file through it.
"""

import os
import subprocess
import threading

import pytest

from tests.foreign import fastrpc
from tests.foreign.debian import Root
from tests.limits import HANG_SECONDS

pytestmark = [pytest.mark.foreign, pytest.mark.xdist_group("fastrpc")]

ROOT = Root("hexagonrpc", packages=("hexagonrpcd=0.3.2-2", "libhexagonrpc0.3=0.3.2-2", "libc6"))


@pytest.fixture(scope="session")
def kernel(prepared, tmp_path_factory):
    with prepared("Debian's hexagonrpcd"):
        ROOT.set_up()
        return fastrpc.kernel(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def read(kernel, tmp_path):
    """Return a function that lets the DSP read a file of the CPU; it returns the kernel's log."""

    def ask(name):
        where = "-f", "/dev/fastrpc-cdsp", "-d", "cdsp", "-R", tmp_path
        with subprocess.Popen(
            [*ROOT.command("libexec/hexagonrpc/hexagonrpcd", preload=kernel), *where],
            env={**os.environ, "NPURT_KERNEL_LOG": "1", "NPURT_KERNEL_READS": name},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as daemon:
            late = threading.Timer(HANG_SECONDS, daemon.kill)
            late.start()
            lines = []
            for line in daemon.stderr:
                lines.append(line.strip())
                if "the CPU has" in line or "Could not open" in line:
                    break
            late.cancel()
            daemon.kill()
        return lines

    folder = tmp_path / "dsp/cdsp"
    folder.mkdir(parents=True)
    (folder / "good.so").write_bytes(b"\x7fELF" + bytes(60))
    (folder / "bad.so").write_bytes(bytes(64))
    return ask


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("good.so", "fastrpc_kernel: the CPU has good.so"),
        ("bad.so", "fastrpc_kernel: the CPU has bad.so, not ELF"),
        ("none.so", "Could not open none.so: No such file or directory"),
    ],
)
def test_the_dsp_reads_a_file_through_the_daemon(read, name, said):
    lines = read(name)

    assert "fastrpc_kernel: call of 0x3, scalars 0x3000000: 0" in lines  # it began to listen
    assert lines[-1] == said
