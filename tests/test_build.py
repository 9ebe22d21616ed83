"""Test the build: names of sources, products that are made again, dependencies of the library."""

import subprocess
from pathlib import Path

import pytest

from tools import build
from tools.build import host_code, zig
from tools.build.__main__ import main

PROJECT = Path(__file__).resolve().parents[1]

# The macros that the compiler defines if it may use an instruction set.  Sources: GCC manual, "x86
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
    """Compile *files* (name -> text) into a program, emulate it, and return its output."""
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
    units = host_code.units([source], target)
    assert len(units) == len(granted)
    for unit, features in zip(units, granted, strict=True):
        tests = [f"{'!' * (f in features)}defined {f}" for f in sorted(FEATURES)]
        source.write_text(f"#if {' || '.join(tests)}\n#error\n#endif\n")

        job = host_code.job(unit, f"{target}-linux-gnu.{build.GLIBC}", (), ())
        zig.compile_c(job, tmp_path / "k.o")


@pytest.mark.parametrize(
    ("target", "levels"), [("x86_64", "base avx2 avx512 "), ("aarch64", "base fp16 ")]
)
def test_a_vec_source_is_compiled_once_for_each_level(target, levels, tmp_path):
    """NPURT_LEVEL is part of the names, and the function of every level can be called."""
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
        host_code.units([Path("k__avx3.c")], "x86_64")


@pytest.mark.parametrize("target", build.TARGETS)
def test_floating_point_is_as_written(target, tmp_path):
    """a * b + c rounds twice (one rounding would give -2^-46), and NaN is supported."""
    main = """
        #include <stdio.h>
        int main(void) {
            volatile float a = 1.0f + 0x1p-23f, b = 1.0f - 0x1p-23f, c = -1.0f;
            volatile float nan = 0.0f / 0.0f;
            printf("%g %d", a * b + c, nan != nan);
        }"""

    assert run_c(tmp_path, target, {"main__i8mm.c": main, "main__avx2.c": main}) == "0 1"


def test_what_was_made_is_made_again_when_it_or_what_it_is_made_from_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(zig, "ROOT", tmp_path)
    source, out = tmp_path / "k.c", tmp_path / "k.so"
    source.write_text("int a;")
    out.write_bytes(b"made of a")

    def stamp(settings="here"):
        return zig.Stamp("k", [source], settings)

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
    monkeypatch.setattr(zig, "ROOT", tmp_path)
    stamp = zig.Stamp("k", [], "")
    stamp.record([])
    (tmp_path / "build/stamps/k.json").write_text(text)

    assert stamp.made() is None


def test_defines_reach_the_compiler(tmp_path):
    main = '#include <stdio.h>\nint main(void) { printf("%d %d", ONE, TWO); }'

    assert run_c(tmp_path, "aarch64", {"main.c": main}, defines=["ONE", "TWO=2"]) == "1 2"


def test_a_source_is_called_by_its_path_in_the_project(tmp_path, monkeypatch):
    """Then the library contains no path of the machine that built it."""
    monkeypatch.setattr(zig, "ROOT", tmp_path)
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
    monkeypatch.setattr(zig, "ROOT", tmp_path)
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

    assert main([]) == 1
    assert platform in capsys.readouterr().err


def test_the_command_makes_a_program_of_the_kernels_and_a_file(tmp_path):
    source, out = tmp_path / "main.c", tmp_path / "program"
    source.write_text('#include "npurt_cpu.h"\nint main(void) { return sizeof(npurt_op) ? R : 0; }')

    status = main(["--target=aarch64", f"--out={out}", "--define=R=3", "--executable", str(source)])

    assert status == 0
    assert subprocess.run(["qemu-aarch64", out], check=False).returncode == 3


def test_the_makefile_names_tests_that_exist():
    names = ["NOT_UNDER_ADDRESS", "UNDER_ADDRESS", "UNDER_THREAD"]
    shown = " ".join(f"$({name})" for name in names)
    # make prints the directory that it enters if another make runs these tests.
    call = ["make", "--no-print-directory", "--eval", f"show:; @echo '{shown}'", "show"]
    said = subprocess.check_output(call, cwd=PROJECT, text=True)
    paths = [word for word in said.split() if word != "--deselect"]

    assert len(paths) > 50
    for path in paths:
        file, _, function = path.partition("::")
        assert (PROJECT / file).exists(), path
        assert f"def {function}(" in (PROJECT / file).read_text() or not function, path
