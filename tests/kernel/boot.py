"""Run commands in a kernel that is a program, on the files of this machine."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kernel.kernel import PARTS, Kernel

MEMORY_MB = 1024


def boot(kernel: Kernel, script: str, *, seconds: int) -> tuple[int | None, str]:
    """Run a shell *script* in the kernel, on this machine's files; return its status and output.

    The status is None if the kernel ended before the script: it crashed, or *seconds* have
    passed.  The kernel's time is simulated: it skips waiting, and computing takes no time.
    """
    with tempfile.TemporaryDirectory(dir=kernel.npu.parent) as name:
        folder = Path(name)
        (folder / "job").write_text(script)
        words = {
            "mem": f"{MEMORY_MB}M", "root": "/dev/root", "rootfstype": "hostfs", "rootflags": "/",
            "init": PARTS / "init.sh", "dtb": kernel.folder / "npu.dtb",
            "con": "null", "con0": "fd:0,fd:1", "loglevel": 4, "time-travel": "inf-cpu",
            "JOB": folder / "job", "STATUS": folder / "status", "PYTHON": sys.executable,
        }  # fmt: skip
        command = [str(kernel.folder / "linux"), "rw", *(f"{k}={v}" for k, v in words.items())]
        env = {**os.environ, **_room_for_memory(folder)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=env, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            said, _ = process.communicate()
        status = folder / "status"
        written = status.read_text() if status.exists() else ""
        ended = int(written) if written else None
        return ended, said.replace("\r\n", "\n")


def _room_for_memory(folder: Path) -> dict[str, str]:
    """Return the environment that places the kernel's memory elsewhere if /dev/shm is small."""
    shared = Path("/dev/shm")
    enough = shared.is_dir() and shutil.disk_usage(shared).free > MEMORY_MB << 20
    return {} if enough else {"TMPDIR": str(folder)}
