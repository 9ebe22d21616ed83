"""Generate the pages of reference/ from the code: API, command line, environment, errors."""

import argparse
import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import npurt
from npurt import errors, settings
from npurt.cli import USAGE, parser
from npurt.llm.decode import llama

PROJECT = Path(__file__).resolve().parents[2]
BELOW = (  # further modules and classes on the page of the API
    "npurt.compat.llama_cpp.Llama",
    "npurt.compat.mlx_lm",
    "npurt.hexagon.session.own_skel",
    "npurt.device.device",
    "npurt.device.segment",
    "npurt.testing",
)
FIRST = ("npurt.pack", "npurt.matmul", "npurt.Llama")  # on the page of the API
WIDTH = "100"  # columns of a help text


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in docs/."""
    return {
        "reference/api.md": api(),
        "reference/cli.md": command_line(),
        "reference/environment.md": environment(),
        "reference/errors.md": error_tree(),
    }


def api() -> str:
    """Return the page of the API; mkdocstrings inserts the docstrings of the names."""
    names = [f"npurt.{name}" for name in npurt.__all__ if not hasattr(errors, name)]
    names = [name for name in names if not name.endswith("__")]
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    lines = ["# API", "", "The public names of `npurt`, then further modules and classes.", ""]
    for name in [*names, *BELOW]:
        lines.append(f"::: {name}")
        if name == "npurt.Llama":  # with the methods of its base, without those for npurt itself
            hidden = "|".join(llama.INTERNALS)
            lines.append("    options:\n      inherited_members: true")
            lines.append(f'      filters: ["!^_", "!^({hidden})$"]')
        lines.append("")
    return "\n".join(lines)


def verbs(top: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each verb of *top* and each nested verb, with its full name."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield f"{name} {verb}", below
                yield from verbs(below, f"{name} {verb}")


def command_line() -> str:
    """Return the page of the verbs: the output of `npurt VERB --help`."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), WIDTH
    try:
        parts = ["# Command line", "The output of `npurt VERB --help` for each verb."]
        for name, verb in verbs(parser(), "npurt"):
            parts += [f"## {name}", f"```text\n{verb.format_help().rstrip()}\n```"]
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return "\n\n".join(parts) + "\n"


def environment() -> str:
    """Return the page of the environment variables."""
    lines = [
        "# Environment variables",
        "",
        "npurt reads a variable when it needs it, not when it is imported. "
        "An empty variable counts as not set.",
        "",
        "| variable | default | meaning |",
        "|---|---|---|",
    ]
    for each in settings.SETTINGS:
        default = "" if each.default == "" else f"`{each.default}`"
        lines.append(f"| `{each.name}` | {default} | {cell(each.help)} |")
    for name in (settings.SIM_FASTRPC, settings.SIM_RKNPU):
        lines.append(f"| `{name}` | | settings of a simulator: [Simulators](../simulators.md) |")
    return "\n".join(
        [*lines, "", "[Models](../models.md) lists the variables of the Hugging Face hub.", ""]
    )


def error_tree() -> str:
    """Return the page of the errors, with the messages that the code raises."""
    parts = [
        "# Errors",
        "Each error has `what` (what happened) and `remedy` (what you can do about it). "
        "`except npurt.NpurtError` catches all of them. In the tables, `…` stands for what differs "
        "from case to case. Messages that the code puts together from parts are not listed.",
    ]
    known = messages()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.NpurtError):
            also = [base.__name__ for base in kind.__bases__ if base is not Exception]
            parts.append(f"## {name}")
            parts.append(inspect.cleandoc(kind.__doc__ or "").replace("\n", " "))
            status = 2 if issubclass(kind, USAGE) else 1
            parents = f"Is also a {' and a '.join(f'`{base}`' for base in also)}. " if also else ""
            parts.append(f"{parents}Exit status of the command line: {status}.")
            rows = [f"| {cell(what)} | {cell(remedy)} |" for what, remedy in known.get(name, ())]
            if rows:
                parts.append("\n".join(["| what happened | remedy |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def messages() -> dict[str, list[tuple[str, str]]]:
    """Return the messages and remedies of each error class, from all `raise` statements."""
    found: dict[str, set[tuple[str, str]]] = {}
    for path in sorted((PROJECT / "npurt").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
                remedies = [text(k.value) for k in call.keywords if k.arg == "remedy"]
                what = text(call.args[0])
                if what and remedies and remedies[0]:
                    found.setdefault(call.func.id, set()).add((what, remedies[0]))
    return {name: sorted(rows) for name, rows in found.items()}


def text(node: ast.expr) -> str:
    """Return the string of *node* with … for each inserted value; "" for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (text(value) if isinstance(value, ast.Constant) else "…" for value in node.values)
        return "".join(parts) if any(isinstance(v, ast.Constant) for v in node.values) else ""
    return ""


def cell(text: str) -> str:
    """Return *text* as plain text of a cell of a table."""
    escaped = "".join(f"\\{mark}" if mark in "\\`*_{}[]<>|" else mark for mark in text)
    return " ".join(escaped.split())
