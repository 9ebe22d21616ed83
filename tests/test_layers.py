"""Imports point down: the layers of the house, enforced."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "npurt"

LAYERS = [  # lowest first; two names in one layer never import each other
    {"build_zig", "errors", "files", "once", "ranges"},
    {"build_sanitize"},
    {"build_host", "build_hexagon"},
    {"build"},
    {"settings"},
    {"doctor", "library", "models"},
    {"quant"},
    {"device", "graph", "restart"},
    {"segment"},
    {"cpu", "hexagon", "reference", "rknpu"},
    {"testing"},
    {"runtime"},
    {"llm"},
    {"cli"},
    {"__init__", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS) - 1  # a name that is no module, as in `from npurt import matmul`
SOURCES = sorted(ROOT.rglob("*.py"))


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement or a string names, as dotted paths."""
    if isinstance(node, ast.ImportFrom) and node.level:
        return [f"npurt.relative import of {node.module or '.'}"]  # refused: write it out
    if isinstance(node, ast.ImportFrom) and node.module == "npurt":
        return [f"npurt.{alias.name}" for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and re.fullmatch(r"npurt(\.\w+)+", str(node.value)):
        names = ("npurt.devices", "npurt.idl")  # of entry points, and of a program
        return [str(node.value)] if node.value not in names else []  # for import_module()
    return []


def wrong_imports(here: str, source: str) -> list[tuple[int, str]]:
    """Return (line, module) of each import in *source* that layer *here* may not make."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            top, _, rest = name.partition(".")
            there = rest.partition(".")[0]
            if top in ("tests", "sim", "bench", "examples"):
                wrong.append((node.lineno, name))
            if top == "npurt" and there != here and RANK.get(there, TOP) >= RANK[here]:
                wrong.append((node.lineno, name))
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")

    assert here in RANK, f"{here} has no layer: give it one in LAYERS"
    assert wrong_imports(here, path.read_text()) == []


@pytest.mark.parametrize(
    ("here", "source"),
    [
        ("hexagon", "import npurt.runtime"),
        ("hexagon", "from npurt.rknpu import regs"),
        ("quant", "from npurt import device, errors"),
        ("quant", "import npurt"),
        ("llm", "def f():\n    from npurt import matmul"),
        ("runtime", "from . import ledger"),
        ("device", "import_module('npurt.cpu.device')"),
        ("cpu", "from tests.oracle import bound"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_seen(here, source):
    assert len(wrong_imports(here, source)) == 1


def test_an_import_that_points_down_or_within_is_let_through():
    source = "import numpy\nfrom npurt import errors\nfrom npurt.llm.arch import llama\n"

    assert wrong_imports("llm", source) == []
