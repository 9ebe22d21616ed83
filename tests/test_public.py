"""Test the names of `import npurt`, and that the import has no side effects."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import npurt
from npurt import errors
from tests.limits import HANG_SECONDS

PROJECT = Path(__file__).resolve().parents[1]
MODULES = sorted(
    ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")
    for path in (PROJECT / "npurt").rglob("*.py")
    if path.name != "__main__.py"  # a program
)

# After other packages are loaded, this reports Python's audit events: opened files (except code),
# loaded libraries, new processes and sockets, and variables read from the environment.
WATCH = """
import json, os, sys
for name in {others!r}:
    __import__(name)
seen = []
def watch(event, args):
    if event == "open" and not str(args[0]).endswith((".py", ".pyc")):
        seen.append([name, event, str(args[0])])
    elif event.startswith(("ctypes.dlopen", "socket.", "subprocess.", "os.system", "os.fork")):
        seen.append([name, event, str(args)])
class Watched(dict):
    def __getitem__(self, key):
        seen.append([name, "environment", key])
        return super().__getitem__(key)
    def get(self, key, default=None):
        seen.append([name, "environment", key])
        return super().get(key, default)
    def __contains__(self, key):
        seen.append([name, "environment", key])
        return super().__contains__(key)
os.environ = Watched(os.environ)
sys.addaudithook(watch)
for name in {names!r}:
    __import__(name)
name = "after"
{after}
print(json.dumps([seen, sorted(sys.modules)]))
"""
OTHERS = [
    "numpy", "numpy.typing", "cffi", "jinja2", "jinja2.sandbox", "tokenizers", "prometheus_client",
    "starlette.applications", "starlette.responses", "uvicorn.protocols.http.h11_impl",
]  # fmt: skip


def watched(names, others=(), after=""):
    """Import *names* in a separate Python; return the reported events and the loaded modules."""
    result = subprocess.run(
        [sys.executable, "-c", WATCH.format(names=list(names), others=list(others), after=after)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=os.environ
        | {
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",  # a separate file
            "NPURT_DEBUG": "nonsense",
        },
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_every_public_name_is_there_and_documented():
    assert len(set(npurt.__all__)) == len(npurt.__all__)
    for name in npurt.__all__:
        value = getattr(npurt, name)
        assert name == "__version__" or inspect.getdoc(value), f"{name} has no docstring"
    assert {name for name in npurt.__all__ if not name.startswith("__")} <= set(dir(npurt))


def test_nothing_else_is_public():
    shown = {
        n: v for n, v in vars(npurt).items() if not n.startswith("_") and n not in npurt.__all__
    }
    ours = [
        name
        for name, value in shown.items()
        if not inspect.ismodule(value) and getattr(value, "__module__", "").startswith("npurt")
    ]

    assert ours == []
    assert sorted(dir(npurt)) == sorted(npurt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Lama'"):
        npurt.Lama  # noqa: B018


def test_every_error_is_public():
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]

    assert {c.__name__ for c in classes if issubclass(c, errors.NpurtError)} <= set(npurt.__all__)


def test_a_star_import_gives_the_public_names():
    names = {}
    exec("from npurt import *", names)  # noqa: S102

    assert set(npurt.__all__) <= set(names)


def test_the_version_is_that_of_the_package():
    assert all(part.isdecimal() for part in npurt.__version__.split("."))


def test_importing_npurt_opens_nothing_reads_no_environment_and_loads_little():
    seen, modules = watched(["npurt"])

    assert seen == []
    for heavy in ("numpy", "cffi", "_cffi_backend", "jinja2", "tokenizers", "npurt.llm"):
        assert heavy not in modules


def test_importing_any_module_opens_nothing_and_reads_no_environment():
    seen, modules = watched(MODULES, OTHERS)

    assert seen == []
    assert len(MODULES) > 40
    assert set(MODULES) <= set(modules)


def test_the_watch_sees_what_it_is_there_for():
    """The test does everything that must be reported, to show that the tests above can fail."""
    after = (
        "import npurt.settings, npurt.cpu.kernels.abi; "
        "npurt.settings.read(npurt.settings.DEVICE, str); "
        "npurt.cpu.kernels.abi.ffi()"
    )
    seen, _ = watched(["npurt"], OTHERS, after)

    assert ["after", "environment", "NPURT_DEVICE"] in seen
    assert any(path.endswith("npurt_cpu.h") for _, event, path in seen if event == "open")
