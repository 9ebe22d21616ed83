"""Test environment variables: one module reads them, at their use, and refuses invalid values."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt import settings
from npurt.errors import SettingError
from npurt.settings import SETTINGS, Setting, read

ROOT = Path(__file__).resolve().parents[1] / "npurt"
# These modules pass the environment to the compiler.
EXEMPT = (
    "settings.py",
    *(
        "build_zig.py",
        "build_hexagon.py",
        "build_sanitize.py",
        "build_metadata.py",
        "build_wheel.py",
    ),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
@pytest.mark.parametrize("text", [None, ""])
def test_a_variable_unset_or_empty_gives_the_default(setting, text, monkeypatch):
    monkeypatch.delenv(setting.name, raising=False)
    if text is not None:
        monkeypatch.setenv(setting.name, text)

    assert read(setting, type(setting.default)) == setting.default


def test_a_variable_is_read_when_asked_for_and_not_before(monkeypatch):
    monkeypatch.setenv("NPURT_THREADS", "3")
    assert read(settings.THREADS, int) == 3
    monkeypatch.setenv("NPURT_THREADS", "4")
    assert read(settings.THREADS, int) == 4


@given(st.integers())
def test_a_number_is_read_as_it_was_written(number):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("NPURT_THREADS", str(number))

        assert read(settings.THREADS, int) == number


@pytest.mark.parametrize("text", ["two", "1.5", "0x10", "1 2", "-"])
def test_a_number_that_is_none_is_refused_by_name_and_value(text, monkeypatch):
    monkeypatch.setenv("NPURT_THREADS", text)

    with pytest.raises(SettingError) as caught:
        read(settings.THREADS, int)

    assert "NPURT_THREADS" in caught.value.what
    assert repr(text) in caught.value.what
    assert settings.THREADS.help in caught.value.remedy


def test_the_table_holds_every_setting_once():
    defined = [value for value in vars(settings).values() if isinstance(value, Setting)]

    assert list(SETTINGS) == defined
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.name.startswith("NPURT_") for setting in SETTINGS)


def environment_reads(source: str) -> list[int]:
    """Return the lines of *source* that access the environment."""
    names = {"environ", "environb", "getenv", "getenvb"}
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names}:
            lines.append(node.lineno)
    return lines


def test_no_other_module_reads_the_environment():
    reads = {
        str(path.relative_to(ROOT)): environment_reads(path.read_text())
        for path in ROOT.rglob("*.py")
        if str(path.relative_to(ROOT)) not in EXEMPT
    }

    assert {name: lines for name, lines in reads.items() if lines} == {}


@pytest.mark.parametrize(
    "source", ["os.environ['X']", "os.getenv('X')", "from os import path, environ"]
)
def test_a_read_of_the_environment_is_seen(source):
    assert environment_reads(source) == [1]
