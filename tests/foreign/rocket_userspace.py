"""Build the test programs of rocket-userspace (GPL-3.0), with the flags of its CMake file.

The programs run beside this project and are never linked to it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npurt.build import host
from npurt.build_zig import Arg, Job
from tests.foreign import programs
from tests.foreign.sources import Program, unpacked

PROGRAM = Program(
    "rocket-userspace",
    "https://github.com/gregordinary/rocket-userspace",
    "e06778627e8c2df246cee852f18dfcc1376bf395",
)

# The library reads sizes that rocket_conv_transpose.c never sets, and its tests plan nothing unless
# they are zero.  The sums of its CPU oracles may be reordered: they are loops over floats, compared
# within tolerances, and take most of the time.  The oracle of attention is in the library.
FLAGS = ["-O3", "-ftrivial-auto-var-init=zero", "-fno-math-errno"]
ORACLE = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-ffp-contract=fast"]


@dataclass(frozen=True, slots=True)
class Test:
    """A test that the CMake file registers."""

    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    skipped: list[int] = field(
        default_factory=list
    )  # exit statuses that mean that the test was skipped


def registered(source: Path) -> dict[str, Test]:
    """Return the tests of the CMake file by name, in its order."""
    text = re.sub(r"#.*", "", (source / "CMakeLists.txt").read_text())
    tests = {
        name: Test(command.split())
        for name, command in re.findall(r"add_test\(NAME (\S+)\s+COMMAND ([^)]+)\)", text)
    }
    for names, properties in re.findall(
        r"set_tests_properties\((.*?)PROPERTIES(.*?)\)", text, re.DOTALL
    ):
        codes = [int(code) for code in re.findall(r"SKIP_RETURN_CODE (\d+)", properties)]
        env = dict(re.findall(r'ENVIRONMENT "(\w+)=([^"]*)"', properties))
        for test in names.split():
            tests[test].skipped.extend(codes)
            tests[test].env.update(env)
    return tests


def build() -> tuple[Path, dict[str, Test]]:
    """Build the programs that are not up to date; return their folder, and the tests.

    Raises:
        MissingError: The sources are not available here.
        BuildError: They do not compile.
    """
    source = unpacked(PROGRAM)
    tests = registered(source)
    flags = tuple(_flags(source))
    library = [*sorted((source / "src").glob("*.c")), source / "graph/rocket_graph_rk3576.c"]
    mains = [source / f"tests/{name}.c" for name in sorted({t.command[0] for t in tests.values()})]
    return programs.build(
        source,
        [
            Job(path, (*flags, *ORACLE) if path.name == "rocket_attn.c" else flags)
            for path in library
        ],
        [Job(path, (*flags, *ORACLE)) for path in mains],
    ), tests


def _flags(source: Path) -> list[Arg]:
    captures = source / "tests/data"
    folders = (
        source / "include",
        source / "src",
        source / "graph",
        captures / "rk3576-vendor-capture",
    )
    flags: list[Arg] = [*FLAGS, *(f"-I{folder}" for folder in folders)]
    flags.append(f'-DTEFLON_DW_CAPTURE_DIR="{captures / "teflon-dw-capture"}"')
    if host() == "x86_64":
        flags.append("-D__fp16=_Float16")  # Arm's name of the type
        if {"avx2", "f16c", "fma", "bmi2"} <= set(Path("/proc/cpuinfo").read_text().split()):
            flags.append("-mcpu=x86_64_v3")
    return flags
