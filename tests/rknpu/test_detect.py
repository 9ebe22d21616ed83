"""Test the detection of the NPU by driver name, and the advice on each obstacle."""

import contextlib
import itertools
import os
import resource
import subprocess
import sys

import pytest

from npurt.errors import DeviceNotFound, DriverError, NpurtError, SettingError
from npurt.rknpu.driver.detect import driver_name, open_driver
from npurt.rknpu.driver.system import LinuxKernel
from npurt.rknpu.plan.proof import Role
from tests.limits import HANG_SECONDS
from tests.rknpu.conftest import STRICT


@pytest.fixture
def sim(simulator):
    """Return the simulator; restore its settings after the test."""
    simulator.set(f"reload=1 {STRICT}")
    yield simulator
    simulator.set(f"reload=1 {STRICT} nodes=accel0,renderD128,card1")


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("nodes", "name", "node"),
    [
        ("accel0,renderD128,card1", "rocket", "/dev/accel/accel0"),
        ("accel3", "rocket", "/dev/accel/accel3"),
        ("renderD128,card1", "rknpu", "/dev/dri/renderD128"),
        ("renderD130", "rknpu", "/dev/dri/renderD130"),
        ("card1", "rknpu", "/dev/dri/card1"),
    ],
)
def test_the_driver_is_known_by_its_name_not_by_its_node(sim, nodes, name, node):
    sim.set(f"nodes={nodes}")

    driver = open_driver(sim)

    assert driver.name == name
    assert node in driver.detail
    assert len(driver.spaces) == 3
    driver.close()


@pytest.mark.parametrize(("name", "told"), [("rocket", None), ("rknpu", None), ("rknpu", 3)])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_that_are_not_there_are_not_used(sim, monkeypatch, name, told, cores):
    """With the vendor's driver, the device tree may name a chip with more cores."""
    sim.set(f"cores={cores}")
    if told:
        monkeypatch.setattr(sim, "cores", lambda driver: told)

    driver = open_driver(sim, (name,))

    assert len(driver.spaces) == cores
    assert driver.detail.endswith(f"{cores} cores" if cores > 1 else "1 core")
    assert not any(space.spans for space in driver.spaces)
    driver.close()


def test_a_first_job_that_fails_says_nothing_of_the_cores(sim):
    for fault in ("timeout", "stale", "enomem", "eio"):
        sim.set(f"reload=1 fault={fault}@submit")
        driver = open_driver(sim, ("rknpu",))

        assert len(driver.spaces) == 3
        driver.close()


def test_a_driver_can_be_asked_for(sim):
    driver = open_driver(sim, ("rknpu",))

    assert driver.name == "rknpu"
    assert "0.9.8" in driver.detail
    driver.close()


def test_no_node_is_told_with_what_to_install(sim, monkeypatch):
    sim.set("nodes=none")
    monkeypatch.setattr(sim, "simulated", False)
    before = descriptors()

    with pytest.raises(DeviceNotFound, match="no RK3588 NPU") as error:
        open_driver(sim)
    assert "rocket" in error.value.remedy
    assert "rknpu:sim" in error.value.remedy
    assert descriptors() == before


def test_a_node_that_may_not_be_opened_names_the_group(sim):
    sim.set("nodes=accel0 fault=eacces@open:1+")

    with pytest.raises(DeviceNotFound, match=r"accel0: permission denied; run `sudo usermod -aG"):
        open_driver(sim)


@pytest.mark.parametrize("name", ["rocket", "rknpu"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_opening_that_fails_half_way_leaves_no_descriptor(sim, name, n):
    before = descriptors()
    sim.set(f"fault=emfile@open:{n} fault=eio@action:{n}")

    with contextlib.suppress(NpurtError):
        open_driver(sim, (name,)).close()
    assert descriptors() == before


@pytest.mark.parametrize("seconds", ["abc", "0", "-5"])
def test_a_deadline_that_makes_no_sense_is_refused_and_leaves_no_descriptor(
    sim, monkeypatch, seconds
):
    monkeypatch.setenv("NPURT_DEADLINE", seconds)
    before = descriptors()

    with pytest.raises(SettingError, match=seconds) as caught:
        open_driver(sim)
    assert "NPURT_DEADLINE" in str(caught.value)
    assert descriptors() == before


@pytest.mark.parametrize(("version", "fits"), [(905, False), (906, True), (907, True)])
def test_an_old_driver_of_the_vendor_is_refused(sim, version, fits):
    sim.set(f"version={version}")
    if not fits:
        with pytest.raises(DeviceNotFound, match="905, older than 906"):
            open_driver(sim, ("rknpu",))
        return
    driver = open_driver(sim, ("rknpu",))
    assert f"0.9.{version % 100}" in driver.detail
    driver.spaces[0].alloc(4096, Role.INPUT, "A").free()  # without the flag that was added in 0.9.7
    driver.close()


def test_the_name_of_something_else_is_an_error(sim, tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(DriverError, match="VERSION failed"):
        driver_name(sim, fd)
    os.close(fd)


def test_a_simulator_without_a_node_is_told_how_to_have_one(sim):
    sim.set("nodes=accel0")

    with pytest.raises(DeviceNotFound, match="no RK3588 NPU") as error:
        open_driver(sim, ("rknpu",))
    assert "NPURT_SIM_RKNPU" in error.value.remedy
    assert "rknpu:sim" not in error.value.remedy


def test_settings_of_the_environment_that_the_simulator_does_not_know_are_refused():
    script = "import npurt; npurt.open_device('rknpu:sim')"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS,
        env={**os.environ, "NPURT_SIM_RKNPU": "foo=1"},
    )  # fmt: skip

    assert "SettingError: the RK3588 simulator refuses NPURT_SIM_RKNPU" in result.stderr
    assert "unknown setting foo=1" in result.stderr
    assert "remedy: docs/simulators.md" in result.stderr


def test_settings_that_the_simulator_does_not_know_are_refused(sim):
    with pytest.raises(SettingError, match="colour"):
        sim.set("colour=blue")


def test_a_node_in_use_names_who_has_it(tmp_path):
    """Two users at once can hang a board.  The test opens one file twice in a single process."""
    node = tmp_path / "accel0"
    node.touch()
    system = LinuxKernel()
    first, second = (system.open(str(node)) for _ in range(2))

    system.lock(first, str(node))
    system.lock(first, str(node))
    with pytest.raises(DeviceNotFound, match=f"accel0 is in use by process {os.getpid()}") as error:
        system.lock(second, str(node))
    assert "hang the board" in error.value.remedy
    system.close(first)
    system.lock(second, str(node))
    system.close(second)


@pytest.fixture
def nodes():
    """Return the paths of two terminals, as character devices that no other process uses."""
    pairs = [os.openpty() for _ in range(2)]
    yield [os.ttyname(slave) for _, slave in pairs]
    for fd in itertools.chain(*pairs):
        os.close(fd)


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "two devices"])
def test_two_nodes_of_one_device_exclude_each_other(tmp_path, nodes, shared):
    """The nodes are like renderD128 and card0; each `LinuxKernel` stands for a process."""
    for i, node in enumerate(nodes):
        number = os.stat(node).st_rdev
        folder = tmp_path / f"sys/dev/char/{os.major(number)}:{os.minor(number)}"
        platform = tmp_path / f"sys/devices/platform/{0 if shared else i}.npu"
        platform.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(platform)
    (tmp_path / "proc").symlink_to("/proc")
    before = descriptors()
    one, other = LinuxKernel(tmp_path), LinuxKernel(tmp_path)
    first, second = one.open(nodes[0]), other.open(nodes[1])

    one.lock(first, nodes[0])
    one.lock(first, nodes[0])
    if shared:
        with pytest.raises(DeviceNotFound, match=f"{nodes[1]} is in use by process {os.getpid()}"):
            other.lock(second, nodes[1])
        one.close(first)
        first = one.open(nodes[0])
    other.lock(second, nodes[1])
    one.close(first)
    other.close(second)
    assert descriptors() == before


@pytest.mark.parametrize("name", ["rocket", "rknpu"])
def test_a_node_that_another_process_uses_is_not_opened(sim, monkeypatch, name):
    def lock(fd, node):
        raise DeviceNotFound(f"{node} is in use by process 7", remedy="end it")

    monkeypatch.setattr(sim, "lock", lock)
    before = descriptors()

    with pytest.raises(DeviceNotFound, match=r"/dev/.* is in use by process 7"):
        open_driver(sim, (name,))
    assert descriptors() == before


def test_the_holder_of_a_lock_may_stay_unknown(tmp_path):
    system = LinuxKernel(root=tmp_path)
    fds = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]
    system.lock(fds[0], "node")

    with pytest.raises(DeviceNotFound, match="another process"):
        system.lock(fds[1], "node")
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("cores", [0, 1, 3])
def test_cores_of_rocket_are_counted_in_sysfs(tmp_path, cores):
    for i in range(cores):
        (tmp_path / f"sys/bus/platform/drivers/rocket/fda{i}0000.npu").mkdir(parents=True)

    assert LinuxKernel(root=tmp_path).cores("rocket") == cores


@pytest.mark.parametrize(
    ("compatible", "cores"),
    [
        ("radxa,rock-5b\0rockchip,rk3588\0", 3),
        ("xunlong,orangepi-5\0rockchip,rk3588s\0", 3),
        ("some,board\0rockchip,rk3582\0", 3),
        ("some,board\0rockchip,rk3583\0", 2),
    ],
)
def test_cores_of_the_vendor_follow_from_the_chip(tmp_path, compatible, cores):
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_text(compatible)

    assert LinuxKernel(root=tmp_path).cores("rknpu") == cores


@pytest.mark.parametrize("compatible", ["rockchip,rk3568-evb\0rockchip,rk3568\0", None])
def test_another_chip_is_refused(tmp_path, compatible):
    if compatible:
        (tmp_path / "proc/device-tree").mkdir(parents=True)
        (tmp_path / "proc/device-tree/compatible").write_text(compatible)

    with pytest.raises(DeviceNotFound, match=r"rk3568|unknown"):
        LinuxKernel(root=tmp_path).cores("rknpu")


def test_the_limit_of_open_files_is_raised_to_what_is_allowed():
    script = (
        "import resource\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "from npurt.rknpu.driver.detect import open_driver\n"
        "from npurt.rknpu.driver.system import SimulatedKernel\n"
        "open_driver(SimulatedKernel())\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_SECONDS
    )

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(result.stdout) == (65536 if hard == resource.RLIM_INFINITY else min(65536, hard))
