"""Test that any program runs on the simulator when the library is preloaded."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim_rknpu import client
from tools import build

SOURCE = Path(__file__).with_name("foreign.c")
LIMIT = 60  # seconds; the commands take at most 2


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Return a program that uses the drivers' headers and no part of this project."""
    out = tmp_path_factory.mktemp("foreign") / "foreign"
    return build.compile_executable([SOURCE], build.host(), out, static=False)


def ended(command, **options):
    """Run a command within `LIMIT` seconds; seconds of a suspended machine do not count.

    A virtual machine may be suspended for minutes while its clock continues.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(part) for part in command], **pipes, **options) as process:
        for _ in range(LIMIT):
            with contextlib.suppress(subprocess.TimeoutExpired):
                said = process.communicate(timeout=1)
                return subprocess.CompletedProcess(command, process.returncode, *said)
        process.kill()
    raise AssertionError(f"{command} did not end within {LIMIT} s")


def preloaded(*command, settings="log=1", check=True):
    """Run a command with the simulator preloaded; return its stdout and stderr."""
    _, _, library = client.simulator()
    others = os.environ.get("LD_PRELOAD", "")  # a sanitizer's runtime must be loaded first
    env = {**os.environ, "LD_PRELOAD": f"{others} {library}", "NPURT_SIM_RKNPU": settings}
    done = ended(command, env=env)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("coherent", [1, 0])
@pytest.mark.parametrize("driver", ["rocket", "rknpu"])
@pytest.mark.parametrize("shape", [(1, 32, 32), (4, 64, 64), (7, 2080, 96), (64, 512, 384)])
def test_a_foreign_program_multiplies(foreign, driver, shape, coherent):
    out, err = preloaded(foreign, driver, *shape, settings=f"coherent={coherent}")

    assert out == f"{driver} {'x'.join(map(str, shape))}: 0 wrong of {shape[0] * shape[2]}\n"
    assert not err


def test_a_foreign_program_uses_three_cores(foreign):
    preloaded(foreign, "rknpu", 4, 64, 96, 3)


def test_a_foreign_program_is_told_why_it_hangs(foreign):
    out, err = preloaded(foreign, "rknpu", 32, 11264, 32, settings="hang_ms=1 log=1", check=False)

    assert out == "SUBMIT: Connection timed out\n"
    *_, total, reason = err.splitlines()
    assert total == "rknpu-sim: of 1 jobs 1 were refused, and their results are stale:"
    assert re.fullmatch(r"rknpu-sim: +1 x register 0x1040 CNA_CBUF_CON0 = .*: .*", reason)


def test_the_counters_of_a_process_are_written_when_it_ends(foreign, tmp_path):
    path = tmp_path / "report.json"
    preloaded(foreign, "rocket", 4, 64, 64, settings=f"report={path}")

    report = json.loads(path.read_text())

    assert report["submits"] == {"rocket": 1, "rknpu": 0}
    assert report["cores"][0]["words"] == 126


def test_a_setting_that_means_nothing_closes_the_nodes(foreign):
    out, err = preloaded(foreign, "rocket", 4, 64, 64, settings="nonsense=1", check=False)

    assert "No such file" in out
    assert "unknown setting nonsense=1" in err


def test_the_nodes_are_files_in_their_folders():
    code = (
        "import os, stat; import sys\n"
        "for folder in ('/dev/accel', '/dev/dri'):\n"
        "    for entry in os.scandir(folder):\n"
        "        number = os.stat(entry.path).st_rdev\n"
        "        fd = os.open(entry.path, os.O_RDWR)\n"
        "        assert os.fstat(fd).st_rdev == number and os.access(entry.path, os.R_OK)\n"
        "        os.close(fd)\n"
        "        print(entry.name, os.major(number), os.minor(number))\n"
        "assert len(os.listdir('/dev')) > 5 and os.path.isdir('/dev/accel')\n"
    )
    out, _ = preloaded(sys.executable, "-c", code)

    assert out == "accel0 261 0\nrenderD128 226 128\ncard1 226 1\n"


@pytest.mark.parametrize(
    ("nodes", "cores"), [("accel0", 3), ("accel0", 2), ("renderD128,card1", 3), ("card1", 2)]
)
def test_a_program_finds_the_chip_and_its_cores(nodes, cores):
    """npurt finds device `rknpu`, as on a board, and not `rknpu:sim`."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "folder = Path('/sys/bus/platform/drivers/rocket')\n"
        "print(len(list(folder.glob('*.npu'))), all(p.is_dir() for p in folder.glob('*.npu')))\n"
        "tree = Path('/sys/firmware/devicetree/base')\n"
        "print(sorted(os.listdir(tree)), (tree / 'npu@fdab0000').is_dir())\n"
        "for tree in (tree, Path('/proc/device-tree')):\n"
        "    print((tree / 'compatible').is_file(), (tree / 'compatible').read_bytes())\n"
        "    print((tree / 'model').stat().st_size, (tree / 'model').read_bytes())\n"
    )
    out, _ = preloaded(sys.executable, "-c", code, settings=f"nodes={nodes} cores={cores}")

    chip = "rk3583" if cores == 2 else "rk3588"
    tree = f"True b'simulated,{chip}\\x00rockchip,{chip}\\x00'\n17 b'simulated {chip}\\x00'\n"
    assert out == (
        f"{cores if nodes == 'accel0' else 0} True\n"
        f"['compatible', 'model', 'npu@fdab0000'] True\n{tree}{tree}"
    )


@pytest.mark.parametrize("name", ["renderD128", "card1", "renderD129", "accel0"])
def test_a_node_of_the_vendors_names_its_driver(name):
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "print(os.listdir('/sys/class/drm'), os.listdir('/sys/bus/platform/drivers/RKNPU'))\n"
        f"event = Path('/sys/class/drm/{name}/device/uevent')\n"
        "print(event.read_text() if event.is_file() else '')\n"
    )
    out, _ = preloaded(sys.executable, "-c", code)

    event = "DRIVER=RKNPU\n" if name in ("renderD128", "card1") else ""
    assert out == f"['renderD128', 'card1'] ['fdab0000.npu']\n{event}\n"


@pytest.mark.parametrize(
    ("nodes", "opened"), [("accel0", "rocket at"), ("renderD128,card1", "rknpu 0.9.8 at")]
)
def test_the_doctor_examines_the_simulated_board(nodes, opened):
    command = [sys.executable, "-m", "npurt", "doctor", "-dev", "rknpu", "--json"]
    out, _ = preloaded(*command, settings=f"nodes={nodes}")

    (kind,) = json.loads(out)["kinds"]
    said = {check["name"]: check["what"] for check in kind["checks"]}
    assert kind["runs"]
    assert "simulated rk3588" in said["board"]
    assert opened in said["open"]
    assert "fail" not in {check["state"] for check in kind["checks"]}
    assert ("rocket" in said["npu-clock"]) == (nodes == "accel0")


def test_a_child_of_a_fork_has_an_npu_of_its_own(foreign):
    code = (
        "import os, subprocess, sys\n"
        "fd = os.open('/dev/accel/accel0', os.O_RDWR)\n"
        "pid = os.fork()\n"
        "os.close(fd)\n"
        "done = subprocess.run(sys.argv[1:])\n"
        "sys.exit(done.returncode or (pid and os.waitpid(pid, 0)[1]))\n"
    )
    out, _ = preloaded(sys.executable, "-c", code, foreign, "rocket", 4, 64, 64)

    assert out.count("0 wrong") == 2


# --- npurt sim ---------------------------------------------------------------------------------


def npurt_sim(*arguments):
    return ended([sys.executable, "-m", "npurt", "sim", *arguments])


def test_the_command_says_where_the_library_is():
    assert npurt_sim("--path", "rknpu").stdout == f"{client.simulator()[2]}\n"


@pytest.mark.parametrize("driver", ["rocket", "rknpu"])
def test_the_command_runs_a_program_on_the_simulator(foreign, driver):
    done = npurt_sim("--", foreign, driver, 4, 64, 64)

    assert (done.returncode, done.stdout) == (0, f"{driver} 4x64x64: 0 wrong of 256\n")


def test_the_command_ends_as_its_program_does(foreign):
    assert npurt_sim("--", foreign, "too", "few").returncode == 2


def test_a_program_that_is_not_there_is_an_error_with_a_remedy():
    done = npurt_sim("--", "./there-is-no-such-program")

    assert done.returncode == 1
    assert "remedy:" in done.stderr


def test_a_program_and_another_option_are_too_much(foreign):
    assert npurt_sim("--json", "--", foreign).returncode == 2
