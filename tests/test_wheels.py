"""Test the content of wheels and of the source archive, for each platform.

tests/release, which `make wheels` runs, tests that builds are equal to the byte and work in a new
environment: those tests compile everything, or use a package index.
"""

import base64
import csv
import hashlib
import io
import os
import re
import struct
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import npurt
from tests import elf, wheels
from tools import build
from tools.build import wheel_hook
from tools.build.zig import BuildError

PROJECT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
COMPILER = WHEEL["hooks"]["custom"]["compiler"]
PAGE, PAGE_FILES = PROJECT / "npurt/serve/page", {".css", ".html", ".js", ".svg"}
NEEDED = [COMPILER, "cffi>=1.16"]  # for builds that compile
PLATFORMS = [f"linux-{target}" for target in build.TARGETS]
HEXAGON = 164  # EM_QDSP6 of the ELF specification's list of machines
MACHINES = {"linux-x86_64": 62, "linux-aarch64": 183}
INFO = f"npurt-{npurt.__version__}.dist-info"


@pytest.fixture(scope="module", params=[*PLATFORMS, wheels.PURE])
def platform(request):
    return request.param


@pytest.fixture(scope="module")
def wheel(platform, tmp_path_factory):
    """Return the wheel of each platform, made from this checkout."""
    return wheels.make(tmp_path_factory.mktemp(platform), platform)


@pytest.fixture(scope="module")
def content(wheel):
    """Return the files of the wheel: name -> bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_holds_the_package_and_nothing_beside_it(wheel, content, platform):
    python = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "npurt").rglob("*.py")
        if not path.match("tools/build/*.py")
    }
    built, about = set(), {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    if platform != wheels.PURE:
        folder = PROJECT / "build" / platform.removeprefix("linux-")
        made = build.make(folder / "npurt", folder.name)
        built = {str(path.relative_to(folder)) for path in made}
        about.add("extra_metadata/libraries.json")
        assert {"npurt/cpu/libnpurt_cpu.so", "npurt/rknpu/sim/librknpu_sim.so"} < built
        assert "npurt/hexagon/idl/npurt.interface" in built
        assert {f"npurt/hexagon/skel/libnpurt_skel_v{v}.so" for v in (68, 73, 75, 79, 81)} < built

    assert wheel.name == f"npurt-{npurt.__version__}-{wheels.tag_of(platform)}.whl"
    assert {*content} == {
        *python,
        *built,
        *WHEEL["force-include"].values(),
        "npurt/py.typed",
        *(str(path.relative_to(PROJECT)) for path in (PROJECT / "npurt").rglob("*.tsv")),
        *(str(path.relative_to(PROJECT)) for path in PAGE.iterdir() if path.suffix in PAGE_FILES),
        *(f"{INFO}/{name}" for name in about),
    }


def test_what_is_compiled_is_for_the_machine_of_the_wheel(content, platform):
    """Files for the Hexagon are in the wheel of every machine."""
    machines = {
        name: struct.unpack_from("<H", data, 18)[0]
        for name, data in content.items()
        if data.startswith(b"\x7fELF")
    }

    for name, machine in machines.items():
        dsp = name.startswith(("npurt/hexagon/skel/", "npurt/hexagon/sim/shell"))
        assert machine == (HEXAGON if dsp else MACHINES[platform]), name
    assert {*machines} == {name for name in content if name.endswith((".so", "sim/shell"))}
    assert (len(machines) > 5) == (platform != wheels.PURE)


def test_the_record_lists_every_file_with_its_hash(content):
    """pip checks the record.  Source: "Recording installed projects" of the PyPA specifications."""
    record = {
        row[0]: row[1:] for row in csv.reader(io.StringIO(content[f"{INFO}/RECORD"].decode()))
    }

    assert {*record} == {*content}
    assert record.pop(f"{INFO}/RECORD") == ["", ""]
    for name, (said, size) in record.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).decode()
        assert (said, int(size)) == (f"sha256={digest.rstrip('=')}", len(content[name])), name


def test_the_wheel_says_whether_it_is_for_one_machine(content, platform):
    said = content[f"{INFO}/WHEEL"].decode().splitlines()

    assert f"Tag: {wheels.tag_of(platform)}" in said
    assert f"Root-Is-Purelib: {str(platform == wheels.PURE).lower()}" in said


def test_libraries_need_nothing_newer_than_glibc_2_28(content, platform, tmp_path):
    """manylinux_2_28 (PEP 600) guarantees glibc 2.28; its other libraries are not used."""
    ours = {
        name: data
        for name, data in content.items()
        if data.startswith(b"\x7fELF\x02") and name.endswith(".so")
    }
    for name, data in ours.items():
        (tmp_path / "library.so").write_bytes(data)
        read = elf.read(tmp_path / "library.so")

        assert {n for n in read.needed if not n.startswith("ld-linux-")} <= {
            "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"
        }, name  # fmt: skip
        assert read.imports
        for symbol, version in read.imports.items():
            assert version.startswith("GLIBC_2.") or not version, f"{name}: {symbol}"
            assert tuple(map(int, (version or "GLIBC_2.0")[6:].split("."))) <= (2, 28), symbol
    assert bool(ours) == (platform != wheels.PURE)


def test_the_kernels_export_what_their_header_says_and_no_more(content, platform, tmp_path):
    header = (PROJECT / "npurt/cpu/kernels/npurt_cpu.h").read_text()
    public = re.findall(r"^NPURT_API [^(;]*?(\w+)\(", header, flags=re.M)
    if platform != wheels.PURE:
        (tmp_path / "library.so").write_bytes(content["npurt/cpu/libnpurt_cpu.so"])

        assert sorted(elf.read(tmp_path / "library.so").exports) == sorted(public)
    assert [name for name in public if not name.startswith("npurt_")] == []


MULTIPLY = """
import numpy, npurt
print(npurt.__file__)
for device in {devices!r}:
    w = npurt.pack(numpy.eye(64, dtype="f4"), "q8_0", device=device)
    assert abs(npurt.matmul(numpy.ones((1, 64), "f4"), w) - 1).max() < 0.02
    print(w.device)
"""


def test_what_a_wheel_holds_is_enough_to_multiply_on_every_device(tmp_path):
    """The wheel is installed anywhere, without the checkout and without a compiler."""
    wheels.install(wheels.make(tmp_path / "dist", f"linux-{build.host()}"), tmp_path / "there")

    said = wheels.python(
        tmp_path / "there", MULTIPLY.format(devices=("cpu", "hexagon:sim", "rknpu:sim"))
    ).splitlines()

    assert said == [
        str(tmp_path / "there/npurt/__init__.py"), "cpu", "hexagon:sim", "rknpu:sim"
    ]  # fmt: skip


# Modules and functions of Linux that macOS or Windows do not have.
ELSEWHERE = """
import os, sys
sys.platform = {platform!r}
for name in {missing!r}:
    sys.modules[name] = None
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "posix_fadvise"):
    if hasattr(os, name):
        delattr(os, name)
"""
FIRST_DEVICE = """
import warnings
import numpy, npurt
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    w = npurt.pack(numpy.eye(64, dtype="f4"), "q8_0")
y = numpy.ones((1, 64), "f4") @ w
print(w.device, abs(y - 1).max() < 0.02, "numpy computes instead" in str(warned[0].message))
try:
    npurt.pack(numpy.eye(64, dtype="f4"), device="cpu")
except npurt.DeviceNotFound as error:
    print("there is no" in error.what, "use the device numpy" in error.remedy)
"""


@pytest.mark.parametrize(
    ("platform", "missing"),
    [("linux", ()), ("darwin", ()), ("win32", ("fcntl", "resource", "termios", "pwd", "grp"))],
    ids=["linux", "darwin", "win32"],
)
def test_a_wheel_without_libraries_multiplies_on_numpy(platform, missing, tmp_path):
    """`auto` chooses numpy on Linux, and on a Python without the modules that only Linux has."""
    wheels.install(wheels.make(tmp_path / "dist", wheels.PURE), tmp_path / "there")

    there = ELSEWHERE.format(platform=platform, missing=missing)

    assert wheels.python(tmp_path / "there", there + FIRST_DEVICE).splitlines() == [
        "numpy True True", "True True"
    ]  # fmt: skip


# --- the source archive --------------------------------------------------------------------------


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="this is no checkout of git")
def test_the_source_archive_holds_what_git_does(tmp_path):
    """The archive has sources, tests, data, documents and CI: enough to build, test and release."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=PROJECT, check=True, text=True, capture_output=True,
    ).stdout.split("\0")  # fmt: skip

    with tarfile.open(wheels.make(tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert names == {*filter(lambda name: (PROJECT / name).is_file(), tracked), "PKG-INFO"}
    assert {"Makefile", ".ci/run", "tests/conftest.py", "docs/architecture.md"} < names


# --- when a compiler is needed -------------------------------------------------------------------


def hook():
    return wheel_hook.BuildHook(str(PROJECT), {"compiler": COMPILER}, None, None, "", "wheel")


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Return a folder that replaces this checkout, in which nothing is built."""
    monkeypatch.setattr(wheel_hook, "ROOT", tmp_path)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    return tmp_path


def test_a_build_asks_for_the_pinned_compiler_and_the_parser_of_headers(elsewhere):
    assert hook().dependencies() == NEEDED
    assert "ziglang" in COMPILER
    assert "cffi>=1.16" in PYPROJECT["project"]["dependencies"]


def test_the_compiler_has_one_version():
    pins = {
        requirement
        for requirement in [
            *PYPROJECT["build-system"]["requires"],
            *PYPROJECT["project"]["optional-dependencies"]["dev"],
            COMPILER,
        ]
        if requirement.startswith("ziglang")
    }

    assert pins == {"ziglang==0.17.1"}


@pytest.mark.parametrize("system", ["any", "macosx-14.0-arm64", "linux-riscv64", "win-amd64"])
def test_a_machine_without_libraries_needs_no_compiler(system, elsewhere, monkeypatch):
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", system)

    assert hook().dependencies() == []


def test_a_libc_that_refuses_the_libraries_gets_none(monkeypatch):
    """Alpine's musl, for example, also has the platform linux-x86_64."""
    monkeypatch.delenv("_PYTHON_HOST_PLATFORM", raising=False)
    native = wheel_hook.machine()
    monkeypatch.setattr(wheel_hook, "sys_tags", lambda: ["py3-none-musllinux_1_2_x86_64"])

    assert (native, wheel_hook.machine()) == (build.host(), None)


def test_a_finished_wheel_spares_the_compiler(elsewhere, monkeypatch):
    """Its libraries are used, with their modes; a wheel of other sources or with damage is not."""
    monkeypatch.undo()
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    made = wheels.make(elsewhere / "dist", "linux-aarch64")
    origin = hook()._origin()

    def make(*_):
        raise BuildError("there is no compiler")

    monkeypatch.setattr(wheel_hook, "PACKAGE", elsewhere / "in-place/npurt")
    monkeypatch.setattr(wheel_hook, "make", make)
    monkeypatch.setattr(wheel_hook, "ROOT", elsewhere)
    monkeypatch.setattr(wheel_hook.BuildHook, "_origin", lambda _: origin)

    assert hook().dependencies() == []
    data = {"force_include": {}, "extra_metadata": {}}
    hook().initialize("standard", data)
    hook().initialize("editable", dict(data))
    with zipfile.ZipFile(made) as archive:
        assert "npurt/cpu/libnpurt_cpu.so" in data["force_include"].values()
        for path, name in data["force_include"].items():
            assert Path(path).read_bytes() == archive.read(name)
            assert (
                Path(path).stat().st_mode & 0o111
                == archive.getinfo(name).external_attr >> 16 & 0o111
            )
            assert (elsewhere / "in-place" / name).read_bytes() == archive.read(name)

    monkeypatch.setattr(wheel_hook.BuildHook, "_origin", lambda _: "other sources")
    assert hook().dependencies() == NEEDED
    with pytest.raises(BuildError, match="no compiler"):
        hook().initialize("standard", data)
    monkeypatch.setattr(wheel_hook.BuildHook, "_origin", lambda _: origin)
    made.write_bytes(made.read_bytes()[:1000])
    assert hook().dependencies() == NEEDED


def test_an_editable_install_builds_in_place_and_says_how_long_that_takes(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(wheel_hook, "PACKAGE", tmp_path)
    monkeypatch.setattr(wheel_hook, "finished_wheel", lambda *_: None)
    monkeypatch.setattr(build, "PRODUCTS", build.PRODUCTS[1:2])
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    build_data = {"force_include": {}, "extra_metadata": {}}

    hook().initialize("editable", build_data)

    seconds = wheel_hook.CPU_SECONDS / os.cpu_count()
    assert f"compiles C, which takes {seconds:.0f} s" in capfd.readouterr().err
    assert elf.read(tmp_path / "rknpu/driver/libnpurt_rk.so").machine == "aarch64"
    assert build_data == {
        "force_include": {},
        "extra_metadata": {},
        "pure_python": False,
        "tag": "py3-none-manylinux_2_28_aarch64",
    }
