"""Test that npurt releases all system resources: after a close, a drop, an error, and at exit.

Separate processes count their resources, without a garbage collector (`holding.py`).
"""

import json
import os
import subprocess
import sys

import pytest

from tests.holding import DRAFT, TARGET
from tests.limits import HANG_SECONDS, eventually

DEVICES = ("cpu", "hexagon:sim", "rknpu:sim", "rknpu:sim-vendor")
FEW = ("a_hybrid_that_is_dropped", "a_device_that_is_dropped", "models_that_are_refused")
OTHERWISE = [
    ("hexagon:sim", {"NPURT_HEXAGON_TRANSPORT": "dspqueue"}),
    ("hexagon:sim", {"NPURT_HEXAGON_WORKER": "1"}),
    ("rknpu:sim", {"NPURT_ROCKET_THREADS": "1"}),
]


@pytest.fixture
def spawn(tmp_path):
    """Return a function that runs Python to its end, with a separate folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()

    def run(*arguments, **environ):
        environ |= {"TMPDIR": str(folder), "NPURT_CACHE": str(tmp_path / "cache")}
        # Freed memory returns to the system at once, for all relevant sizes.
        environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
        return subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    yield run
    assert list(folder.iterdir()) == []


def assert_nothing_left(done, minimum):
    """Check that at least *minimum* uses were tried, and that none left a resource."""
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert len(told) >= minimum
    assert {name: left for name, left in told.items() if left} == {}


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_dropped_closed_or_refused_is_given_back(spawn, device):
    assert_nothing_left(spawn("-m", "tests.holding", "uses", device), 14)


@pytest.mark.parametrize(("device", "environ"), OTHERWISE)
def test_so_it_is_whatever_calls_the_device(spawn, device, environ):
    assert_nothing_left(spawn("-m", "tests.holding", "uses", device, *FEW, **environ), 3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_constructor_that_fails_at_any_step_gives_everything_back(spawn, device):
    assert_nothing_left(spawn("-m", "tests.holding", "steps", device), 60)


# --- Descriptors ---------------------------------------------------------------------------------

SHORT_OF = f"""
import os, resource, sys
import npurt

def use():
    with npurt.Llama({str(TARGET)!r}, sys.argv[1], draft={str(DRAFT)!r}, draft_device=sys.argv[1],
                     n_ctx=16, n_threads=1, progress=False) as llm:
        llm.eval([1, 2])

def count():
    return len(os.listdir("/proc/self/fd")) - 1

use()
before, (_, hard) = count(), resource.getrlimit(resource.RLIMIT_NOFILE)
for more in range(99):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + more, hard))
    try:
        use()
        break
    except npurt.NpurtError as error:
        assert error.remedy
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert count() == before, more
print(more > 0)
"""


@pytest.mark.parametrize(
    ("device", "environ"), [("cpu", {}), ("hexagon:sim", {}), OTHERWISE[1]], ids=str
)
def test_a_process_that_runs_short_of_descriptors_says_so_and_loses_none(spawn, device, environ):
    """The test lets the descriptors run out at each step."""
    done = spawn("-c", SHORT_OF, device, **environ)

    assert done.stdout == "True\n", done.stderr


# --- Exit -----------------------------------------------------------------------------------------

OPEN = f"""
import os, sys, threading
import npurt
llm = npurt.Llama({str(TARGET)!r}, {{device!r}}, draft={str(DRAFT)!r}, draft_device={{device!r}},
                  n_ctx=64, progress=False)
pieces = llm.generate([1, 2, 3], max_tokens=40, stream=True, temperature=0)
next(pieces)
w = npurt.pack(npurt.QTensor.quantize([[1.0] * 32] * 32, "q8_0").T, device={{device!r}})
sys.stdout.write(open("/proc/self/task/%d/children" % os.getpid()).read() + chr(10))
sys.stdout.flush()
"""
ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "1 / 0": 1,
    "circle = [llm]; circle.append(circle); del llm": 0,
    "npurt.Llama = llm": 0,
    "threading.Thread(target=list, args=[pieces], daemon=True).start()": 0,
    "threading.Thread(target=list, args=[pieces]).start()": 0,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("device", DEVICES[:3])
def test_a_process_that_ends_leaves_nothing(spawn, device, end):
    done = spawn("-c", OPEN.format(device=device) + end)

    assert done.returncode == ENDS[end]
    if "daemon" in end and done.stderr:
        # The thread may run when its device is closed, and Python may end it during its message.
        assert done.stderr.startswith("Exception in thread")
    else:
        assert "ZeroDivisionError" in done.stderr if end == "1 / 0" else done.stderr == ""
    for child in done.stdout.split():
        assert eventually(lambda child=child: not os.path.exists(f"/proc/{child}"))
