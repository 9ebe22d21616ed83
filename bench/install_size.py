"""Measure which files installed by `pip install npurt` the documented commands never open.

    python bench/install_size.py dist/npurt-*_x86_64.whl

Installs the wheel and its dependencies from pip's package index into a new virtual environment, and
runs the commands there. Each process records the files that it opens, and at its end the files that
it has mapped. A source file counts as opened if its bytecode is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import distributions
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from tests.models.hub_server import REPO, serving  # noqa: E402

MODEL = PROJECT / "tests/data/models/llama3/llama3-q8_0.gguf"
SKEL = PROJECT / "npurt/hexagon/skel/libnpurt_skel_v68.so"
WATCH = """
import atexit, os, sys
_seen = set()
def _hook(event, args):
    if event == "open" and isinstance(args[0], str):
        _seen.add(os.path.abspath(args[0]))
sys.addaudithook(_hook)
def _write():
    maps = open("/proc/self/maps").read().split()
    _seen.update(word for word in maps if word.startswith("/"))
    with open(os.environ["OPENED"], "a") as file:
        file.write("".join(f"{name}\\n" for name in _seen))
atexit.register(_write)
"""
TEN_LINES = """
import numpy as np, npurt
a = np.ones((4, 64), np.float32)
w = npurt.pack(np.ones((64, 32), np.float32), "q4_0")
y = a @ w
with npurt.Llama({model!r}) as llm:
    for piece in llm.generate("def quicksort(", max_tokens=4, stream=True):
        pass
    llm.report()
"""
REGCMD = "matmul --m 4 --k 64 --n 64 --dtype int8 --layout row --a 0x10000 --w 0x20000 --c 0x30000"


def commands(model: str, text: str, trace: str) -> list[list[str]]:
    """Return the commands of the documentation, with a small model."""
    run = ["npurt", "run", "-m", model, "-n", "4"]
    return [
        ["python", "-c", TEN_LINES.format(model=model)],
        ["npurt", "--version"],
        [*run, "-p", "What is an NPU?", "--report"],
        [*run, "--raw", "-p", "def quicksort(", "--trace", trace],
        ["npurt", "run", "-hf", f"{REPO}:Q8_0", "-p", "Hello", "-n", "4"],
        ["npurt", "chat", "-m", model, "-n", "4"],
        ["npurt", "bench", "-m", model, "-p", "8", "-n", "4", "--json"],
        ["npurt", "bench", "matmul", "--m", "1", "--k", "256", "--n", "256", "--type", "q4_k"],
        ["npurt", "perplexity", "-m", model, "-f", text, "-c", "32"],
        ["npurt", "devices"],
        ["npurt", "models"],
        [*run, "-p", "Hello", "-dev", "hexagon:sim", "--report"],
        [*run, "-p", "Hello", "-dev", "rknpu:sim", "--report"],
        ["npurt", "plan", model, "--device", "rknpu"],
        ["npurt", "doctor"],
        ["npurt", "probe", "-dev", "rknpu:sim"],
        ["npurt", "regcmd", *REGCMD.split()],
        ["npurt", "skel", "verify", str(SKEL)],
        ["npurt", "sim"],
    ]


def opened_by_commands(venv: Path, work: Path) -> set[str]:
    """Run the commands; return the files that their processes opened."""
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "watch_opened.py").write_text(WATCH)
    (site / "watch_opened.pth").write_text("import watch_opened\n")
    log, text = work / "opened", work / "text"
    text.write_text((PROJECT / "README.md").read_text())
    with serving() as server:
        server.repos[REPO] = {"Tiny-Q8_0.gguf": MODEL.read_bytes()}
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "OPENED": str(log),
            "HOME": str(work),
            "HF_ENDPOINT": server.url,
            "PATH": f"{venv}/bin:{os.environ['PATH']}",
        }
        for command in commands(str(MODEL), str(text), str(work / "trace.json")):
            done = subprocess.run(
                [venv / "bin" / command[0], *command[1:]],
                env=environment, cwd=work, input="Hello\n", text=True, capture_output=True,
            )  # fmt: skip
            shown = " ".join(command[:4]).replace("\n", " ")[:60]
            print(f"status {done.returncode}: {shown}", file=sys.stderr)
            if done.returncode and command[1] != "doctor":  # doctor fails because there is no NPU
                print(done.stderr, file=sys.stderr)
    return set(log.read_text().splitlines())


def rows(venv: Path, opened: set[str]) -> list[dict[str, object]]:
    """Return bytes installed and bytes never opened, for each distribution."""
    (site,) = venv.glob("lib/python*/site-packages")
    found = []
    for package in distributions(path=[str(site)]):
        files = {str(Path(package.locate_file(each)).resolve()) for each in package.files or ()}
        sizes = Counter({name: os.path.getsize(name) for name in files if os.path.isfile(name)})
        unused = {name: size for name, size in sizes.items() if not is_opened(name, opened)}
        biggest = sorted(unused, key=unused.__getitem__)[-3:]
        found.append(
            {
                "package": f"{package.metadata['Name']} {package.version}",
                "installed": sizes.total(),
                "unopened": sum(unused.values()),
                "biggest": [os.path.relpath(name, site) for name in reversed(biggest)],
            }
        )
    return sorted(found, key=lambda row: -int(str(row["installed"])))


def is_opened(name: str, opened: set[str]) -> bool:
    """Return whether the file *name*, or its bytecode, was opened."""
    path = Path(name)
    if path.suffix == ".py":
        tag = f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        return name in opened or str(path.parent / "__pycache__" / tag) in opened
    return name in opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv, work = Path(folder, "venv").resolve(), Path(folder, "work")
        work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        install = [venv / "bin/python", "-m", "pip", "install", "--quiet", args.wheel]
        subprocess.run(install, check=True, env=environment)
        found = rows(venv, opened_by_commands(venv, work))
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print(
        "| package | MB installed | MB never opened | biggest files of these |\n|---|---|---|---|"
    )
    for row in found:
        sizes = f"{int(str(row['installed'])) / 1e6:.1f} | {int(str(row['unopened'])) / 1e6:.1f}"
        print(f"| {row['package']} | {sizes} | {', '.join(map(str, row['biggest']))} |")
    total = [sum(int(str(row[key])) for row in found) / 1e6 for key in ("installed", "unopened")]
    print(f"| all | {total[0]:.1f} | {total[1]:.1f} | |")


if __name__ == "__main__":
    main()
