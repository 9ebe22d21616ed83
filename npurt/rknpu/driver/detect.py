"""Find the NPU by the name of its driver, and open it."""

import contextlib
import errno
import grp
import os
import resource
from collections.abc import Iterator

from npurt.errors import DeviceNotFound, DriverError
from npurt.rknpu.driver import uapi_drm, uapi_rknpu, uapi_rocket
from npurt.rknpu.driver.base import Driver
from npurt.rknpu.driver.rocket import RocketDriver
from npurt.rknpu.driver.system import LinuxKernel, failure, ffi
from npurt.rknpu.driver.vendor import RknpuDriver
from npurt.settings import ROCKET_THREADS, SIM_RKNPU, deadline, read

# DRM's node numbers start at 0, 128 and 0; boards have fewer than eight nodes of each type.
NODES = (
    *(f"/dev/accel/accel{i}" for i in range(8)),
    *(f"/dev/dri/renderD{i}" for i in range(128, 136)),
    *(f"/dev/dri/card{i}" for i in range(8)),
)
DRIVERS = (uapi_rocket.NAME, uapi_rknpu.NAME)
_ABSENT = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
FILES = 65536  # file descriptors; some runtimes of this NPU need more than 1024


def open_driver(system: LinuxKernel, names: tuple[str, ...] = DRIVERS) -> Driver:
    """Open the NPU with the first node whose driver is in *names*.

    Raises:
        DeviceNotFound: There is no NPU, this user may not use it, or another process uses it.
        DriverError: A call of the driver failed.
        SettingError: `NPURT_DEADLINE` or `NPURT_ROCKET_THREADS` is invalid.
    """
    deadline_s = deadline()
    refused: list[str] = []
    for node, fd in _nodes(system, refused):
        with contextlib.ExitStack() as stack:
            stack.callback(system.close, fd)
            try:
                name = driver_name(system, fd)
            except DriverError as error:
                refused.append(f"{node}: {error.what}")
                continue
            if name in names:
                system.lock(fd, node)
                _raise_file_limit()
                driver = (_rocket if name == uapi_rocket.NAME else _rknpu)(system, fd, node)
                driver.deadline_s = deadline_s
                stack.pop_all()
                return driver
    raise _not_found(system, refused)


def _nodes(system: LinuxKernel, refused: list[str]) -> Iterator[tuple[str, int]]:
    """Yield opened nodes; add reasons to *refused* for existing nodes that cannot be opened."""
    for node in NODES:
        try:
            yield node, system.open(node)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                refused.append(f"{node}: permission denied; {_permit(node, _group(node))}")
            elif error.errno not in _ABSENT:
                refused.append(f"{node}: {error.strerror}")


def _permit(node: str, group: str) -> str:
    """Return commands that let this user open *node* without joining the group root."""
    if group == "root":
        return f"run `sudo chgrp render {node} && sudo chmod 660 {node}`; {_permit(node, 'render')}"
    return f"run `sudo usermod -aG {group} $USER`, log in again"


def _group(node: str) -> str:
    """Return the group that may use a node."""
    try:
        return grp.getgrgid(os.stat(node).st_gid).gr_name
    except (OSError, KeyError):
        return "render"


def driver_name(system: LinuxKernel, fd: int) -> str:
    """Return the name of the DRM driver behind a node.

    Raises:
        DriverError: The node is not a DRM node.
    """
    name = ffi().new("char[32]")
    version = ffi().new("struct drm_version *", {"name": name, "name_len": len(name) - 1})
    system.ioctl(fd, uapi_drm.VERSION, version)
    return str(ffi().string(name).decode(errors="replace"))


def _rocket(system: LinuxKernel, fd: int, node: str) -> RocketDriver:
    """Open the driver: *fd* is for the first core, and the node is opened again for the others."""
    cores = system.cores(uapi_rocket.NAME)
    if not cores:
        raise DeviceNotFound(
            f"the rocket driver at {node} has no core",
            remedy="enable the NPU's cores in the device tree; see `dmesg | grep rocket`",
        )
    with contextlib.ExitStack() as stack:
        fds = [fd]
        for _ in range(cores - 1):
            try:
                fds.append(system.open(node))
            except OSError as error:
                raise failure("open", error.errno or 0) from error
            stack.callback(system.close, fds[-1])
        driver = RocketDriver(system, fds, node, threads=bool(read(ROCKET_THREADS, int)))
        stack.pop_all()
    return driver


def _rknpu(system: LinuxKernel, fd: int, node: str) -> RknpuDriver:
    version = _action(system, fd, uapi_rknpu.DRV_VERSION)
    if version < uapi_rknpu.OLDEST:
        raise DeviceNotFound(
            f"the rknpu driver at {node} is {version}, older than {uapi_rknpu.OLDEST} "
            f"({uapi_rknpu.release(uapi_rknpu.OLDEST)})",
            remedy="use a newer kernel of the vendor, or mainline 6.18 with rocket",
        )
    if _action(system, fd, uapi_rknpu.GET_IOMMU_EN) != 1:
        raise DeviceNotFound(
            f"the NPU at {node} runs without its IOMMU",
            remedy="enable the node rknpu_mmu in the device tree",
        )
    cores = system.cores(uapi_rknpu.NAME)
    while True:
        driver = RknpuDriver(system, fd, node, cores, version)
        try:
            if cores == 1 or not driver.refuses_all_cores():
                return driver
        except BaseException:
            driver.spaces[0].drop()  # the caller closes the file
            raise
        cores -= 1


def _action(system: LinuxKernel, fd: int, which: int) -> int:
    argument = ffi().new("struct rknpu_action *", {"flags": which})
    system.ioctl(fd, uapi_rknpu.ACTION, argument)
    return int(argument.value)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files to `FILES`, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _not_found(system: LinuxKernel, refused: list[str]) -> DeviceNotFound:
    if (system.root / "dev/rknpu").exists():
        refused.append(
            "/dev/rknpu: this kernel's driver was built with DMA_HEAP; npurt needs DRM_GEM"
        )
    if system.simulated:
        remedy = f"remove the setting that hides the nodes from {SIM_RKNPU}: see docs/simulators.md"
    else:
        remedy = (
            "use a kernel with the driver rocket (Linux 6.18) or rknpu (the vendor's); without a "
            "board, use device 'rknpu:sim'"
        )
    return DeviceNotFound(
        "no RK3588 NPU" + "".join(f"\n    {reason}" for reason in refused),
        remedy=remedy,
    )
