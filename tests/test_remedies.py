"""Test that no remedy in the source is advice that says nothing."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "npurt"
# Remedies that a reader cannot carry out, or has just tried.
EMPTY = re.compile(
    r"(check|correct) (the |that |your )?(path|grammar|name|URL|connection|JSON|file|schema|regex)"
    r"|^try again$|^check [A-Z_]+$",
    re.IGNORECASE,
)


def remedies(path):
    """Yield the line and the text of each remedy in *path*; {} stands for a value."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "remedy":
            texts = [
                each.value for each in ast.walk(node.value)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]  # fmt: skip
            yield node.value.lineno, "{}".join(texts)


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_each_remedy_can_be_carried_out(path):
    empty = [f"{line}: {text}" for line, text in remedies(path) if EMPTY.search(text)]
    assert not empty


def test_empty_advice_is_found():
    for text in ("check the path", "correct the grammar", "try again", "check HF_ENDPOINT"):
        assert EMPTY.search(text)
    assert not EMPTY.search("check the clock of this machine")
