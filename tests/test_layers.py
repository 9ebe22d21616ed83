"""Test that imports point down, between layers and between the subpackages of a package."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "npurt"

LAYERS = [  # lowest first; two names in one layer never import each other
    {"errors"},
    {"settings", "version"},
    {"base"},
    {"doctor", "models"},
    {"quant"},
    {"graph"},
    {"device"},
    {"backend"},
    {"cpu", "hexagon", "reference", "rknpu"},
    {"testing"},
    {"runtime"},
    {"llm"},
    {"compat", "serve"},
    {"cli"},
    {"__init__", "__main__"},
]
# The subpackages of a package, each with one job, lowest first, as in LAYERS.
SUBPACKAGES: dict[str, list[set[str]]] = {
    "base": [
        {"declarations", "extras", "files", "gguf_parts", "once", "ranges"},
        {"file_kinds", "late", "threads"},
        {"library"},
    ],
    "cli": [{"signals"}, {"arguments", "output"}, {"verbs"}],
    "cpu": [{"kernels"}, {"pool"}, {"state"}, {"lowering"}, {"device"}, {"backend"}],
    "device": [
        {"device", "pages", "restart"},
        {"delta", "host_products"},
        {"delta_check", "verify"},
        {"segment"},
        {"guard"},
        {"products"},
    ],
    "hexagon": [
        {"idl"},
        {"fastrpc"},
        {"layout"},
        {"host", "plan", "session"},
        {"connect"},
        {"device"},
        {"doctor"},
        {"backend"},
    ],
    "llm": [
        {"file"},
        {"state", "text"},
        {"arch"},
        {"session"},
        {"spec"},
        {"decode"},
        {"engine"},
        {"measure", "convert"},
    ],
    "rknpu": [{"isa"}, {"plan"}, {"driver"}, {"device"}, {"doctor"}, {"backend"}],
    "serve": [
        {"engine", "http"},
        {"tools"},
        {"front"},
        {"router", "interfaces", "status"},
        {"page"},
        {"app"},
        {"run"},
    ],
    "runtime": [{"open", "report"}, {"execute"}, {"api"}],
}
# Class names that several files define, each with the reason; all others are defined once.
SEVERAL = {
    "Embedding": "an op, and the type of llama-cpp-python",
    "ImageFormat": "the layout of a weight in each backend that has images of its own",
    "Llama": "npurt.Llama, and the class of llama-cpp-python",
    "MatMul": "a product of the contract of devices, and an op",
    "PackedWeight": "npurt.PackedWeight, and a weight of the CPU's programs",
    "Speed": "an estimate in each backend that has a cost model",
    "WeightStore": "the weights of a device in each backend of an NPU",
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
TOP = len(LAYERS) - 1  # a name that is no module, as in `from npurt import matmul`
SOURCES = sorted(ROOT.rglob("*.py"))
WITHOUT_NUMPY = [
    *(ROOT / "llm/text").rglob("*.py"),
    *(ROOT / "llm/decode/calls").rglob("*.py"),
    *(ROOT / "serve").rglob("*.py"),
    *(ROOT / "llm/file" / f"{name}.py" for name in ("header", "mapped", "metadata", "config")),
    ROOT / "quant/types.py",
]


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
    if isinstance(node, ast.Constant) and NAME.fullmatch(str(node.value)):
        return [str(node.value)] if node.value not in NO_MODULES else []
    if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
        return [] if is_written_out(node) else ["npurt.computed import"]  # refused: write it out
    return []


NAME = re.compile(r"npurt(\.\w+)+\.?|npurt\.")  # a module, or the beginning of one in an f-string
NO_MODULES = ("npurt.devices", "npurt.idl", "npurt.interface")  # entry points, program, file


def called(node: ast.Call) -> str:
    """Return the name of the called function, without the module's."""
    function = node.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def is_written_out(node: ast.Call) -> bool:
    """Return whether a reader, and `imported`, can see the module that a call imports.

    It can be seen in a string, in an f-string that begins with a package or with the name of the
    module itself, and in a table of this file.
    """
    name = node.args[0] if len(node.args) == 1 and not node.keywords else None
    if isinstance(name, ast.Subscript):  # of a table, whose strings `imported` reads
        return isinstance(name.value, ast.Name)
    if isinstance(name, ast.JoinedStr):
        first = name.values[0]
        if isinstance(first, ast.FormattedValue):  # only a package has modules below its own name
            return isinstance(first.value, ast.Name) and first.value.id == "__name__"
        name = first
    return isinstance(name, ast.Constant) and not str(name.value).startswith(".")


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


# The operator ``@`` of a weight means `npurt.matmul` (docs/decisions/023).
CALLS_UP = {"quant/array.py": ["npurt.runtime.api.matmul"]}


def wrong_subpackages(here: str, source: str, subpackages: list[set[str]]) -> list[tuple[int, str]]:
    """Return (line, module) of each import in *source* that its subpackage may not make.

    Args:
        here: The module that *source* is, as "npurt.package.subpackage.module".
        source: Its text.
        subpackages: The subpackages of its package, lowest first.
    """
    rank = {name: i for i, names in enumerate(subpackages) for name in names}
    _, package, subpackage, *_ = here.split(".")
    wrong = []
    for node in ast.walk(ast.parse(source)):
        for name in targets(node):
            if name.startswith(f"npurt.{package}."):
                there = name.split(".")[2]
                if there != subpackage and rank.get(there, len(subpackages)) >= rank[subpackage]:
                    wrong.append((node.lineno, name))
    return wrong


def targets(node: ast.AST) -> list[str]:
    """Return the names that a statement imports, as "package.name"; for strings as `imported`."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return imported(node)


def circle(sources: dict[str, str]) -> list[str]:
    """Return modules of which each imports the next and the last the first; []: there are none.

    Args:
        sources: The text of each module, by its name with dots.
    """
    arrows = {
        here: {
            there
            for node in ast.walk(ast.parse(source))
            for name in targets(node)
            for there in [name if name in sources else name.rpartition(".")[0]]
            if there in sources and there != here
        }
        for here, source in sources.items()
    }
    while arrows:
        last = [here for here, there in arrows.items() if not there & arrows.keys()]
        if not last:
            break
        for here in last:
            del arrows[here]
    path = list(arrows)[:1]
    while path and path[-1] not in path[:-1]:
        path.append(min(arrows[path[-1]] & arrows.keys()))
    return path[path.index(path[-1]) + 1 :] if path else []


def modules(package: str) -> dict[str, str]:
    """Return the text of each module of *package*, by its name with dots."""
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path.read_text()
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    name = str(path.relative_to(ROOT))
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")

    assert here in RANK, f"{here} has no layer: give it one in LAYERS"
    wrong = [module for _, module in wrong_imports(here, path.read_text())]
    assert wrong == CALLS_UP.get(name, [])


@pytest.mark.parametrize(
    ("here", "source"),
    [
        ("hexagon", "import npurt.runtime"),
        ("hexagon", "from npurt.rknpu.isa import regs"),
        ("quant", "from npurt import device, errors"),
        ("quant", "import npurt"),
        ("llm", "def f():\n    from npurt import matmul"),
        ("runtime", "from . import ledger"),
        ("device", "import_module('npurt.cpu.device')"),
        ("device", "import_module(f'npurt.cpu.{name}')"),
        ("device", "import_module(f'npurt.{name}')"),
        ("device", "import_module('npurt.' + name)"),
        ("device", "HOMES = {'x': 'npurt.cpu.device'}\nimport_module(HOMES['x'])"),
        ("device", "importlib.import_module(name)"),
        ("device", "import_module(f'{package}.delta')"),
        ("device", "import_module(f'{__package__}.delta')"),
        ("device", "import_module('.delta', 'npurt')"),
        ("device", "import_module('.delta', package=__package__)"),
        ("device", "import_module(__name__.rpartition('.')[0] + '.delta')"),
        ("device", "__import__(f'{__package__}.delta')"),
        ("cpu", "from tests.oracle import bound"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_seen(here, source):
    assert wrong_imports(here, source)


def test_an_import_that_points_down_or_within_is_let_through():
    source = """
import numpy
from npurt import errors
from npurt.llm.arch import forward
import_module("openai.types")
import_module(f"npurt.llm.arch.{name}")
import_module(f"{__name__}.{name}")
"""

    assert wrong_imports("llm", source) == []


@pytest.mark.parametrize("path", WITHOUT_NUMPY, ids=lambda p: str(p.relative_to(ROOT)))
def test_texts_and_the_server_need_no_arrays(path):
    """With numpy, the server's front would take 10 MB more."""
    names = [name for node in ast.walk(ast.parse(path.read_text())) for name in imported(node)]

    assert "numpy" not in {name.partition(".")[0] for name in names}


MODULES = [(package, name) for package in SUBPACKAGES for name in modules(package)]


@pytest.mark.parametrize(("package", "name"), MODULES)
def test_imports_between_rooms_point_down(package, name):
    subpackage = name.split(".")[2:3]
    known = set().union(*SUBPACKAGES[package])

    assert set(subpackage) <= known, (
        f"{name} is in no subpackage: move it into one of {sorted(known)}"
    )
    assert (
        not subpackage
        or wrong_subpackages(name, modules(package)[name], SUBPACKAGES[package]) == []
    )


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_a_room_says_what_it_is_for(package):
    for subpackage in set().union(*SUBPACKAGES[package]):
        if not (ROOT / package / subpackage).is_dir():
            continue
        doc = ast.get_docstring(ast.parse(modules(package)[f"npurt.{package}.{subpackage}"]))
        assert doc, f"npurt.{package}.{subpackage} has no docstring"
        assert "import" in doc, (
            f"the docstring of npurt.{package}.{subpackage} has to say what it imports"
        )


PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_a_package_import_in_no_circle(package):
    assert circle(modules(package)) == []


def several(sources: dict[str, str]) -> set[str]:
    """Return the names of classes that two or more of *sources* define."""
    homes = defaultdict(set)
    for module, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(module)
    return {name for name, found in homes.items() if len(found) > 1}


def test_a_class_name_is_defined_in_one_file():
    found = several({str(path): path.read_text() for path in SOURCES})

    assert found == set(SEVERAL), "rename the class, or give the reason in SEVERAL"
    assert len(SEVERAL) <= 12


def test_a_class_name_in_two_files_is_found():
    sources = {
        "npurt.x.a": "class Part: pass\nclass Part: pass\nclass Kind: pass",
        "npurt.x.b": "def f():\n    class Kind: pass",
        "npurt.x.c": "from npurt.x.a import Part",
    }

    assert several(sources) == {"Kind"}


EXAMPLE = [{"low", "beside"}, {"high"}]


@pytest.mark.parametrize(
    ("here", "source"),
    [
        ("npurt.x.low.a", "from npurt.x.high import b"),
        ("npurt.x.low.a", "from npurt.x import high"),
        ("npurt.x.low.a", "def f():\n    import npurt.x.high.b"),
        ("npurt.x.low.a", "from npurt.x.beside.b import c"),
        ("npurt.x.low", "import_module('npurt.x.high')"),
        ("npurt.x.low", "import_module(f'npurt.x.high.{name}')"),
        ("npurt.x.low", "import_module(f'npurt.x.{name}')"),
        ("npurt.x.high.a", "from npurt.x import unknown"),
    ],
)
def test_an_import_of_a_higher_room_is_seen(here, source):
    assert len(wrong_subpackages(here, source, EXAMPLE)) == 1


def test_an_import_of_a_lower_room_or_the_same_is_let_through():
    source = "from npurt.x.low.a import b\nfrom npurt.x.high import c\nfrom npurt.y import d\n"

    assert wrong_subpackages("npurt.x.high.a", source, EXAMPLE) == []


def test_a_circle_of_imports_is_found():
    sources = {
        "npurt.x.a": "from npurt.x import b",
        "npurt.x.b": "def f():\n    from npurt.x.c import thing",
        "npurt.x.c": "import npurt.x.a",
        "npurt.x.d": "from npurt.x.a import thing",
    }

    assert set(circle(sources)) == {"npurt.x.a", "npurt.x.b", "npurt.x.c"}
    assert circle({**sources, "npurt.x.c": "import os"}) == []
