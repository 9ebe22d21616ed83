"""`npurt regcmd check` and `run`: check or run a register program with .npy files as buffers."""

import argparse
import io
import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npurt.base.files import replacing
from npurt.cli.arguments import options
from npurt.errors import LayoutError, NpurtError, SettingError

if TYPE_CHECKING:
    import numpy.typing as npt

    from npurt.rknpu.plan.check import Checked
    from npurt.rknpu.plan.proof import BufferSpan

    Array = npt.NDArray[Any]

MAX_PROGRAM_BYTES = 16 << 20  # upper bound on a program: enough for thousands of tasks
MAX_BYTES = 1 << 30  # upper bound on one buffer
MAX_DIGITS = 600  # upper bound on the digits of a number; Python's limit is at least 640
DTYPES = ("int8", "uint8", "int16", "float16", "int32", "float32")
INPUT = "ADDR=FILE.npy"
OUTPUT = "ADDR=FILE.npy:DTYPE:SHAPE"


def add(kinds: Any) -> None:
    """Add the subcommands check and run of `npurt regcmd`."""
    checker = kinds.add_parser(
        "check",
        help="prove that a program accesses only its buffers and cannot hang the NPU",
        description="Exit status 0: the program is harmless; 1: it is not proven harmless, or a "
        "file cannot be read; 2: invalid usage.",
    )
    runner = kinds.add_parser(
        "run",
        help="check a program, run it, and write its outputs",
        description="Inputs are copied without conversion, so they must have the layout that the "
        "program reads.",
    )
    for parser, run in ((checker, run_check), (runner, run_program)):
        also = " or ADDR=BYTES" if parser is checker else ""
        parser.add_argument("file", type=Path,
                            help="the program: as for `npurt regcmd decode`")  # fmt: skip
        parser.add_argument("-i", "--input", action="append", default=[], metavar=INPUT,
                            help=f"input buffer at an address: {INPUT}{also}")  # fmt: skip
        parser.add_argument("-o", "--output", action="append", default=[], metavar=OUTPUT,
                            help=f"output buffer, such as 0x3000000=c.npy:int32:4x64{also}; "
                            f"types: {', '.join(DTYPES)}")  # fmt: skip
        parser.set_defaults(run=run)
    checker.add_argument("--at", type=address, metavar="ADDR",
                         help="address of the program; default: from its tasks")  # fmt: skip
    runner.add_argument("-dev", "--device", default="rknpu", metavar="NAME",
                        help="rknpu, rknpu:sim or rknpu:sim-vendor; default: rknpu")  # fmt: skip
    runner.add_argument("--timeout", type=float, default=2.0, metavar="SECONDS",
                        help="timeout of the program; default: 2")  # fmt: skip
    for parser in (checker, runner):
        parser.add_argument("--json", action="store_true", help="print one JSON object")


def address(text: str) -> int:
    """Parse a number in any base, such as 0x1000 or 4096."""
    return int(text, 0)


def words_of(file: Path) -> list[int]:
    """Return the words of the program in *file*, or on standard input if *file* is "-"."""
    from npurt.rknpu.isa import regcmd

    if str(file) == "-":
        return regcmd.parse(options.standard_input(MAX_PROGRAM_BYTES))
    return regcmd.parse(options.bytes_of(file, MAX_PROGRAM_BYTES))


def run_check(args: argparse.Namespace) -> int:
    """Check a program; report that it is harmless, or why the proof fails."""
    from npurt.rknpu.plan.check import check
    from npurt.rknpu.plan.proof import Role

    words = words_of(args.file)
    spans = [_span(text, Role.INPUT) for text in args.input]
    spans += [_span(text, Role.OUTPUT) for text in args.output]
    try:
        program = check(words, spans, at=args.at)
    except LayoutError as error:
        if not args.json:
            raise
        print(json.dumps({"ok": False, "why": error.what, "remedy": error.remedy}))
        return 1
    if args.json:
        print(json.dumps({"ok": True, **_about(program)}))
    else:
        print(f"{args.file}: harmless; {_summary(program)}")
    return 0


def run_program(args: argparse.Namespace) -> int:
    """Run a program and write its outputs."""
    import numpy as np

    from npurt.rknpu.driver.execute import execute
    from npurt.rknpu.driver.names import connection

    inputs, files = _inputs(args.input), _outputs(args.output)
    read = [args.file, *(_pair(text, INPUT)[1] for text in args.input)]
    for path, _ in files.values():
        options.require_apart(path, *read)
    words = words_of(args.file)
    system, connect = connection(args.device)
    driver = connect()
    try:
        outputs = {address: array for address, (_, array) in files.items()}
        program = execute(driver, words, inputs, outputs, timeout_s=args.timeout)
    finally:
        driver.close()
    written = []
    for path, array in files.values():
        try:
            with replacing(path) as file:
                np.save(file, array)
        except OSError as error:
            raise NpurtError(
                f"cannot write {path}: {error.strerror}", remedy="name another folder in -o"
            ) from error
        written.append({"file": str(path), "dtype": str(array.dtype), "shape": array.shape})
    if args.json:
        about = {"device": args.device, "simulated": system.simulated, "detail": driver.detail}
        print(json.dumps({**about, **_about(program), "written": written}))
    else:
        simulated = " (simulated)" if system.simulated else ""
        print(f"ran on {driver.detail}{simulated}; {_summary(program)}")
        for row in written:
            print(f"wrote {row['file']}: {row['dtype']} {row['shape']}")
    return 0


def _about(program: "Checked") -> dict[str, Any]:
    """Return the result of the proof for JSON output."""

    def rows(spans: "frozenset[BufferSpan]") -> list[dict[str, Any]]:
        ordered = sorted(spans, key=lambda span: span.start)
        return [{"address": hex(s.start), "bytes": s.end - s.start} for s in ordered]

    return {
        "tasks": len(program.words),
        "profile": program.profile.value,
        "chained": program.chained,
        "reads": rows(program.proof.reads),
        "writes": rows(program.proof.writes),
    }


def _summary(program: "Checked") -> str:
    about = _about(program)
    tasks = f"{about['tasks']} task{'s' if about['tasks'] > 1 else ''}"
    reads, writes = (
        ", ".join(f"{row['bytes']} bytes at {row['address']}" for row in about[key])
        for key in ("reads", "writes")
    )
    return f"{tasks}; reads {reads}; writes {writes}"


def _span(text: str, role: Any) -> "BufferSpan":
    """Return the buffer that an argument of `check` describes."""
    from npurt.rknpu.plan.proof import BufferSpan, Role

    if re.fullmatch(rf"[^=]*=\d{{1,{MAX_DIGITS}}}", text):
        address, value = _pair(text, "ADDR=BYTES")
        nbytes = int(value)
    elif role is Role.INPUT:
        address, array = _input(text)
        nbytes = array.nbytes
    else:
        address, (_, array) = _output(text)
        nbytes = array.nbytes
    if not 0 < nbytes <= MAX_BYTES:
        raise _usage(text, f"{nbytes} bytes are no buffer of 1 to {MAX_BYTES}")
    return BufferSpan(address, address + nbytes, role, f"the {role.name.lower()} at {address:#x}")


def _pair(text: str, form: str) -> tuple[int, str]:
    """Return the address and the rest of ``ADDR=REST``."""
    address, equals, rest = text.partition("=")
    try:
        number = int(address, 0)
    except ValueError:
        number = -1
    if not (equals and rest and 0 <= number < 1 << 32):
        raise _usage(text, f"it is not {form} with an address below 4 GiB")
    return number, rest


def _input(text: str) -> "tuple[int, Array]":
    """Return the address and the array of an input."""
    import numpy as np

    address, path = _pair(text, INPUT)
    data = options.bytes_of(path, MAX_BYTES)
    try:
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an archive of arrays")
    except (ValueError, EOFError, OSError, OverflowError, MemoryError) as error:
        raise NpurtError(
            f"{path} is no .npy file with an array of numbers",
            remedy="write it with numpy.save(path, array)",
        ) from error
    return address, np.ascontiguousarray(array)


def _output(text: str) -> "tuple[int, tuple[Path, Array]]":
    """Return the address, the file and an empty array of an output."""
    import numpy as np

    address, rest = _pair(text, OUTPUT)
    path, dtype, shape = (["", "", *rest.rsplit(":", 2)])[-3:]
    written = re.fullmatch(r"\d{1,10}(x\d{1,10}){0,31}", shape)  # numpy 1: at most 32 axes
    sizes = [int(size) for size in shape.split("x")] if written else []
    if not path or dtype not in DTYPES or not sizes:
        raise _usage(text, f"it is not {OUTPUT} with a type of {', '.join(DTYPES)}")
    if not 0 < math.prod(sizes) * np.dtype(dtype).itemsize <= MAX_BYTES:
        raise _usage(text, f"a buffer has 1 to {MAX_BYTES} bytes")
    return address, (Path(path), np.empty(sizes, dtype))


def _inputs(texts: list[str]) -> "dict[int, Array]":
    """Return the inputs by address."""
    found: dict[int, Array] = {}
    for text in texts:
        address, array = _input(text)
        if address in found:
            raise _usage(text, f"another -i is at {address:#x}")
        found[address] = array
    return found


def _outputs(texts: list[str]) -> "dict[int, tuple[Path, Array]]":
    """Return the outputs by address."""
    found: dict[int, tuple[Path, Array]] = {}
    files = set()
    for text in texts:
        address, (path, array) = _output(text)
        if address in found:
            raise _usage(text, f"another -o is at {address:#x}")
        if os.path.realpath(path) in files:
            raise _usage(text, "another -o writes the same file")
        files.add(os.path.realpath(path))
        found[address] = path, array
    return found


def _usage(text: str, why: str) -> SettingError:
    return SettingError(
        f"{text!r} describes no buffer: {why}",
        remedy="see `npurt regcmd run -h`; for example -i 0x1000000=a.npy "
        "-o 0x3000000=c.npy:int32:4x64",
    )
