"""Build the test programs of librocketnpu that need no files of the author's board."""

from pathlib import Path

from npurt.build_zig import Job
from tests.foreign import programs
from tests.foreign.sources import Program, unpacked

PROGRAM = Program(
    "orangepi5plus-npu",
    "https://github.com/widgetii/orangepi5plus-npu",
    "882447919e982bdff0969b4e1e70a6bca560ce07",
)
TESTS = ("test_sw_ops", "test_rknpu_abi", "test_mobilenet")


def build() -> Path:
    """Build the programs that are not up to date; return their folder.

    Raises:
        MissingError: The sources are not available here.
        BuildError: They do not compile.
    """
    source = unpacked(PROGRAM)
    code = source / "librocketnpu"
    flags = ("-O2", f"-I{code / 'include'}", f"-I{code / 'src'}")
    library = [p for p in sorted((code / "src").glob("*.c")) if "onnx" not in p.name]
    return programs.build(
        source,
        [Job(path, flags) for path in library],
        [Job(code / f"tests/{name}.c", flags) for name in TESTS],
    )
