"""Run in a process that tries inputs: `python -m tests.fuzz.worker TARGET [PLANTED]`.

It reads lines of JSON, {"seed": ...} or {"input": ...}, and answers each with a line
["the stage that it reached", "the reason for a failure"].
"""

import faulthandler
import json
import os
import re
import sys
import traceback
import warnings
from pathlib import Path

from npurt.errors import NpurtError
from tests.fuzz import frame

QUARANTINE = 512 << 20  # bytes of freed memory that AddressSanitizer may retain


def peak(*, reset=False):
    """Return the peak memory of this process since the last *reset*, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def attempt(target, value):
    """Try one input; return the stage that it reached and the reason for a failure."""
    before = peak(reset=True)
    try:
        word, why = target.run(value) or "ran", ""
    except NpurtError as error:
        word, why = "refused", error.what
    except Exception:  # noqa: BLE001  # whatever it is, it is the finding
        word, why = "failed", re.sub(r"(?m)^(.{400}).*", r"\1...", traceback.format_exc())
    taken, allowed = peak() - before, getattr(target, "memory", lambda _: frame.MEMORY)(value)
    allowed += QUARANTINE if "NPURT_SANITIZE" in os.environ else 0
    if word != "failed" and taken > allowed:
        return "failed", f"it took {taken >> 20} MiB, more than {allowed >> 20} MiB ({word})"
    return word, why


def main(name, plant=""):
    """Answer lines until the input ends."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a target's own input is empty,
    os.dup2(2, 1)  # and what it prints goes to the errors
    faulthandler.enable()
    warnings.simplefilter("error")
    target = frame.load(name)
    if plant:
        target.PLANTED[plant]()
    for line in questions:
        asked = json.loads(line)
        answers.write(json.dumps(attempt(target, frame.input_of(name, asked))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
