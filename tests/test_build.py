"""The build: what the name of a source means, what the library needs, wheels equal to the byte."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import npurt
from npurt import build, build_host, build_zig
from tests import elf

PROJECT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())

# What the compiler defines when it may use an instruction set.  Sources: GCC manual, "x86
# Options", and Arm C Language Extensions, "Feature test macros".
AVX2 = {"__AVX2__", "__FMA__", "__F16C__"}
AVX512 = AVX2 | {"__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"}
VNNI = AVX512 | {"__AVX512VNNI__"}
FP16 = {"__ARM_FEATURE_FP16_VECTOR_ARITHMETIC"}
DOTPROD = FP16 | {"__ARM_FEATURE_DOTPROD"}
FEATURES = VNNI | {"__AMX_INT8__", "__AMX_TILE__"} | DOTPROD | {"__ARM_FEATURE_MATMUL_INT8"}
GRANTED = [
    ("x86_64", "k.c", [set()]),
    ("x86_64", "k__scalar.c", [set()]),
    ("x86_64", "k__avx2.c", [AVX2]),
    ("x86_64", "k__avx512vnni.c", [VNNI]),
    ("x86_64", "k__amxint8.c", [VNNI | {"__AMX_INT8__", "__AMX_TILE__"}]),
    ("x86_64", "k__vec.c", [set(), AVX2, AVX512]),
    ("x86_64", "k__neon.c", []),
    ("x86_64", "k__i8mm.c", []),
    ("aarch64", "k.c", [set()]),
    ("aarch64", "k__scalar.c", [set()]),
    ("aarch64", "k__neon.c", [set()]),
    ("aarch64", "k__dotprod.c", [DOTPROD]),
    ("aarch64", "k__i8mm.c", [DOTPROD | {"__ARM_FEATURE_MATMUL_INT8"}]),
    ("aarch64", "k__vec.c", [set(), FP16]),
    ("aarch64", "k__avx2.c", []),
    ("aarch64", "k__amxint8.c", []),
]


def run_c(tmp_path, target, files, **options):
    """Compile *files* (name -> text) into a program, emulate it, return what it printed."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    sources = [tmp_path / name for name in files if name.endswith(".c")]
    program = build.compile_executable(sources, target, tmp_path / "program", **options)
    command = [f"qemu-{target}", program]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


@pytest.mark.parametrize(
    ("target", "name", "granted"), GRANTED, ids=[f"{target}-{name}" for target, name, _ in GRANTED]
)
def test_the_name_of_a_source_grants_its_instruction_sets_and_no_more(
    target, name, granted, tmp_path
):
    source = tmp_path / name
    units = build_host.units([source], target)
    assert len(units) == len(granted)
    for unit, features in zip(units, granted, strict=True):
        tests = [f"{'!' * (f in features)}defined {f}" for f in sorted(FEATURES)]
        source.write_text(f"#if {' || '.join(tests)}\n#error\n#endif\n")

        job = build_host.job(unit, f"{target}-linux-gnu.{build.GLIBC}", (), ())
        build_zig.compile_c(job, tmp_path / "k.o")


@pytest.mark.parametrize(
    ("target", "levels"), [("x86_64", "base avx2 avx512 "), ("aarch64", "base fp16 ")]
)
def test_a_vec_source_is_compiled_once_for_each_level(target, levels, tmp_path):
    """NPURT_LEVEL makes the names, and every level's function is there to be called."""
    declared = "".join(f"const char *name__{level}(void);" for level in levels.split())
    called = "".join(f'printf("%s ", name__{level}());' for level in levels.split())
    files = {
        "name__vec.c": """
            #define P(a, b) a##b
            #define Q(a, b) P(a, b)
            #define S(a) #a
            #define T(a) S(a)
            const char *Q(name__, NPURT_LEVEL)(void);
            const char *Q(name__, NPURT_LEVEL)(void) { return T(NPURT_LEVEL); }
            """,
        "main.c": f"#include <stdio.h>\n{declared}int main(void){{{called}return 0;}}",
    }

    assert run_c(tmp_path, target, files) == levels


def test_a_suffix_that_is_no_instruction_set_is_refused():
    with pytest.raises(build.BuildError, match=r"k__avx3\.c.*'avx3'"):
        build_host.units([Path("k__avx3.c")], "x86_64")


@pytest.mark.parametrize("target", build.TARGETS)
def test_floating_point_is_as_written(target, tmp_path):
    """a * b + c rounds twice (in one rounding it would be -2^-46), and NaN is not assumed away."""
    main = """
        #include <stdio.h>
        int main(void) {
            volatile float a = 1.0f + 0x1p-23f, b = 1.0f - 0x1p-23f, c = -1.0f;
            volatile float nan = 0.0f / 0.0f;
            printf("%g %d", a * b + c, nan != nan);
        }"""

    assert run_c(tmp_path, target, {"main__i8mm.c": main, "main__avx2.c": main}) == "0 1"


def test_what_was_made_is_made_again_when_it_or_what_it_is_made_from_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(build_zig, "ROOT", tmp_path)
    source, out = tmp_path / "k.c", tmp_path / "k.so"
    source.write_text("int a;")
    out.write_bytes(b"made of a")

    def stamp(settings="here"):
        return build_zig.Stamp("k", [source], settings)

    assert stamp().made() is None
    stamp().record([out])
    assert stamp().made() == [out]
    assert stamp("there").made() is None
    out.write_bytes(b"damaged")
    assert stamp().made() is None
    out.write_bytes(b"made of a")
    assert stamp().made() == [out]
    out.unlink()
    assert stamp().made() is None
    out.write_bytes(b"made of a")
    source.write_text("int b;")
    assert stamp().made() is None
    source.write_text("int a;")
    assert stamp().made() == [out]


@pytest.mark.parametrize("text", ["", "[]", "null", '["key"]', "\0", '[1, {"a": 2}]'])
def test_a_stamp_that_is_no_stamp_is_none(text, tmp_path, monkeypatch):
    monkeypatch.setattr(build_zig, "ROOT", tmp_path)
    stamp = build_zig.Stamp("k", [], "")
    stamp.record([])
    (tmp_path / "build/stamps/k.json").write_text(text)

    assert stamp.made() is None


def test_defines_reach_the_compiler(tmp_path):
    main = '#include <stdio.h>\nint main(void) { printf("%d %d", ONE, TWO); }'

    assert run_c(tmp_path, "aarch64", {"main.c": main}, defines=["ONE", "TWO=2"]) == "1 2"


def test_a_source_is_called_by_its_path_in_the_project(tmp_path, monkeypatch):
    """So no path of the machine that builds gets into the library."""
    monkeypatch.setattr(build_zig, "ROOT", tmp_path)
    main = "#include <stdio.h>\nint main(void) { puts(__FILE__); }"

    assert run_c(tmp_path, "aarch64", {"main.c": main}) == "main.c\n"


def test_a_source_that_does_not_compile_leaves_the_old_library_and_nothing_else(tmp_path):
    source, out = tmp_path / "bad.c", tmp_path / "out/lib.so"
    source.write_text("int f(void) { return nonsense; }")
    out.parent.mkdir()
    out.write_text("old")

    with pytest.raises(build.BuildError, match="'nonsense'"):
        build.build_library("x86_64", out, sources=[source])

    assert [p.read_text() for p in out.parent.iterdir()] == ["old"]


def test_an_unchanged_source_is_not_compiled_again_and_a_changed_header_is_seen(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(build_zig, "ROOT", tmp_path)
    source, header, out = tmp_path / "k.c", tmp_path / "k.h", tmp_path / "lib.so"
    source.write_text('#include "k.h"\n__attribute__((visibility("default"))) int k = K;')

    def made(value):
        header.write_text(f"enum {{ K = {value} }};\n")
        build.build_library("aarch64", out, sources=[source])
        return out.read_bytes(), {*(tmp_path / "build/zig/o").iterdir()}

    first, objects = made(1)
    assert made(1) == (first, objects)
    second, more = made(2)
    assert second != first
    assert more > objects


@pytest.mark.parametrize("target", build.TARGETS)
def test_the_architecture_can_be_said_as_pythons_build_tools_do(target, monkeypatch):
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", f"linux-{target}")

    assert build.host() == target


@pytest.mark.parametrize("platform", ["macosx-14.0-arm64", "linux-riscv64", "win-amd64"])
def test_a_machine_that_npurt_does_not_run_on_is_refused(platform, monkeypatch, capsys):
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", platform)

    assert build.main([]) == 1
    assert platform in capsys.readouterr().err


def test_the_command_makes_a_program_of_the_kernels_and_a_file(tmp_path):
    main, out = tmp_path / "main.c", tmp_path / "program"
    main.write_text('#include "npurt_cpu.h"\nint main(void) { return sizeof(npurt_op) ? R : 0; }')

    status = build.main(
        ["--target=aarch64", f"--out={out}", "--define=R=3", "--executable", str(main)]
    )

    assert status == 0
    assert subprocess.run(["qemu-aarch64", out], check=False).returncode == 3


def test_an_editable_install_builds_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    monkeypatch.setattr(build, "PRODUCTS", build.PRODUCTS[:1])
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-aarch64")
    build_data = {"force_include": {}}

    build.BuildHook(str(PROJECT), {}, None, None, "", "wheel").initialize("editable", build_data)

    assert elf.read(tmp_path / "cpu/libnpurt_cpu.so").machine == "aarch64"
    assert build_data == {
        "force_include": {},
        "pure_python": False,
        "tag": "py3-none-manylinux_2_28_aarch64",
    }


def test_the_compiler_has_one_version():
    pins = {
        requirement
        for requirement in (
            *PYPROJECT["build-system"]["requires"],
            *PYPROJECT["project"]["optional-dependencies"]["dev"],
        )
        if requirement.startswith("ziglang")
    }

    assert pins == {"ziglang==0.17.1"}


# --- wheels --------------------------------------------------------------------------------------


def make_wheel(project, target, folder):
    """Build the wheel of *target* from the checkout at *project* into *folder*."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=project,
        env={**os.environ, "_PYTHON_HOST_PLATFORM": f"linux-{target}"},
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.iterdir()
    return wheel


@pytest.fixture(scope="module", params=build.TARGETS)
def wheel(request, tmp_path_factory):
    """The wheel of each architecture, made from this checkout."""
    return make_wheel(PROJECT, request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def library(wheel, tmp_path_factory):
    """The library in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("npurt/cpu/libnpurt_cpu.so", tmp_path_factory.mktemp("lib")))


def target_of(wheel):
    return wheel.stem.partition("manylinux_2_28_")[2]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """What a checkout holds, in another folder, with nothing built."""
    project = tmp_path_factory.mktemp("elsewhere")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(PROJECT / name, project)
    sources = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard", "npurt", "dsp", "idl", "sim"],
        cwd=PROJECT,
        check=True,
        text=True,
        capture_output=True,
    ).stdout.split("\0")
    for name in filter(None, sources):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, project / name)
    return project


def test_a_wheel_made_in_another_folder_is_equal_to_the_byte(wheel, elsewhere, tmp_path):
    """Nothing is left of the folder, the time, or what was built there before."""
    again = make_wheel(elsewhere, target_of(wheel), tmp_path / "dist")

    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_a_wheel_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    python = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "npurt").rglob("*.py")
        if not path.match("npurt/build*.py")
    }
    built = {
        str(path.relative_to(PROJECT / "build" / target_of(wheel)))
        for path in build.make(PROJECT / "build" / target_of(wheel) / "npurt", target_of(wheel))
    }

    assert wheel.name == f"npurt-{npurt.__version__}-py3-none-manylinux_2_28_{target_of(wheel)}.whl"
    assert "npurt/cpu/libnpurt_cpu.so" in built
    assert {name for name in names if name.startswith("npurt/")} == {
        *python,
        *built,
        *PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].values(),
        "npurt/py.typed",
    }
    assert {name.partition("/")[0] for name in names} == {
        "npurt",
        f"npurt-{npurt.__version__}.dist-info",
    }


def test_what_a_wheel_holds_is_enough_to_multiply_on_every_device(tmp_path_factory):
    """Installed anywhere, without the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    made = make_wheel(PROJECT, build.host(), tmp_path_factory.mktemp("dist"))
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target")
    subprocess.run([sys.executable, *install, folder, made], check=True)
    code = """
import numpy, npurt
print(npurt.__file__)
for device in ("cpu", "hexagon:sim", "rknpu:sim"):
    w = npurt.pack(numpy.eye(64, dtype="f4"), "q8_0", device=device)
    assert abs(npurt.matmul(numpy.ones((1, 64), "f4"), w) - 1).max() < 0.02
"""

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
        text=True,
        capture_output=True,
    )

    assert (done.stdout.strip(), done.stderr) == (str(folder / "npurt/__init__.py"), "")


def test_the_library_needs_nothing_newer_than_glibc_2_28(library, wheel):
    """manylinux_2_28 (PEP 600) promises glibc 2.28; the rest of what it allows is not used."""
    read = elf.read(library)

    assert read.machine == target_of(wheel)
    assert {n for n in read.needed if not n.startswith("ld-linux-")} <= {
        "libc.so.6", "libm.so.6", "libpthread.so.0"
    }  # fmt: skip
    assert read.imports
    for symbol, version in read.imports.items():
        assert version.startswith("GLIBC_2."), symbol
        assert tuple(map(int, version[6:].split("."))) <= (2, 28), symbol


def test_the_library_exports_what_its_header_says_and_no_more(library):
    header = (PROJECT / "npurt/cpu/npurt_cpu.h").read_text()
    public = re.findall(r"^NPURT_API [^(;]*?(\w+)\(", header, flags=re.M)

    assert sorted(elf.read(library).exports) == sorted(public)
    assert [name for name in public if not name.startswith("npurt_")] == []


def test_the_makefile_names_tests_that_exist():
    names = ["NOT_UNDER_ADDRESS", "UNDER_ADDRESS", "UNDER_THREAD"]
    shown = " ".join(f"$({name})" for name in names)
    # make says which directory it enters when another make runs these tests.
    call = ["make", "--no-print-directory", "--eval", f"show:; @echo '{shown}'", "show"]
    said = subprocess.check_output(call, cwd=PROJECT, text=True)
    paths = [word for word in said.split() if word != "--deselect"]

    assert len(paths) > 50
    for path in paths:
        file, _, function = path.partition("::")
        assert (PROJECT / file).exists(), path
        assert f"def {function}(" in (PROJECT / file).read_text() or not function, path
