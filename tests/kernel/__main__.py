"""Build Linux as a program, and run the tests of this folder in it: `make kernel`."""

import argparse
import os
import platform
import shlex
import sys

from tests.kernel import boot, kernel
from tests.kernel.source import MissingError
from tools import build

LIMIT_S = 240  # seconds for one run of the kernel; the tests take less than a minute
PYTEST = "-m pytest -m kernel -q --color=no -p no:cacheprovider"
BEHAVED = "tests/kernel/test_driver.py tests/kernel/test_npurt.py"
ABANDONED = (  # each may crash the kernel; tests/kernel/test_abandoned.py has the reason
    "a_client_that_is_killed_leaves_the_npu_to_the_others[in step]",
    "a_client_that_is_killed_leaves_the_npu_to_the_others[ahead]",
    "a_file_may_be_closed_while_its_jobs_run",
)
DEFECT = (
    "rocket_gem_bo_free"  # a function of Linux in the trace of a kernel that crashed by this defect
)


def main() -> int:
    """Return 0 if all tests pass or the kernel is not available, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--linux", default="7.2", metavar="SERIES", help="7.2 or 7.3")
    parser.add_argument("--run", metavar="COMMAND", help="run this in the kernel, not the tests")
    args = parser.parse_args()
    try:
        made = available(args.linux)
    except MissingError as error:
        say(f"make kernel: skipped: {error}")
        return 0
    say(f"the rocket driver of linux-source {made.version}")
    if args.run:
        return 0 if run(made, args.run) else 1
    python = shlex.quote(sys.executable)
    good = run(made, f"{python} {PYTEST} {BEHAVED}")
    for name in ABANDONED:
        test = shlex.quote(f"tests/kernel/test_abandoned.py::test_{name}")
        good &= run(made, f"{python} {PYTEST} {test}", defect=DEFECT)
    return 0 if good else 1


def available(series: str) -> kernel.Kernel:
    """Return a kernel that runs here."""
    if platform.machine() != "x86_64":
        raise MissingError(f"Linux runs as a program on x86_64, and this is {platform.machine()}")
    made = kernel.make(series)
    status, said = boot.boot(made, "true", seconds=60)
    if status != 0:
        last = (said.strip().splitlines() or ["it says nothing"])[-1]
        raise MissingError(f"the kernel does not start here as a program: {last}")
    return made


def run(made: kernel.Kernel, command: str, defect: str = "") -> bool:
    """Run a command in the kernel, and print the result.

    A crash with *defect* in the trace is the known defect of the kernel, and no failure.
    """
    environment = {
        "HOME": os.environ.get("HOME", "/root"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(build.ROOT),
        "NPURT_KERNEL_NPU": str(made.npu),
        "NPURT_KERNEL_VERSION": made.version,
    }
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environment.items())
    script = f"{exports}cd {shlex.quote(str(build.ROOT))} && {command}\n"
    status, said = boot.boot(made, script, seconds=LIMIT_S)
    say(said)
    if status is None and defect and "Kernel panic" in said and defect in said:
        say(f"the kernel crashed in {defect}, as it is known to: see {command.split()[-1]}")
        return True
    if status is None:
        say(f"the kernel crashed, or took more than {LIMIT_S} s")
    return status == 0


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
