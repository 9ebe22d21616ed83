"""The table and the plot of `npurt bench --spec`; columns as in llama.cpp pull request 25166."""

import io
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from npurt.base import extras
from npurt.base.files import replacing
from npurt.cli.output.tables import DRAFTED, drafted, markdown
from npurt.errors import NpurtError

COLUMNS = ("prompt", "n", *DRAFTED, "t/s", "speedup", "with prompt")
FORMATS = (".png", ".svg", ".pdf")

Rows = Sequence[dict[str, Any]]


def table(rows: Rows) -> str:
    """Return the rows as a markdown table; mark rows whose text differs from plain decoding."""
    lines = [
        (
            row["prompt"],
            "plain" if row["n"] == 0 else str(row["n"]),
            *(drafted(row) if row["n"] else ("", "", "")),
            f"{row['tokens_per_second']:.2f}",
            f"{_speedup(row)}{'' if row['same_text'] else ', another text'}",
            f"{row['total_speedup']:.2f}x",
        )
        for row in rows
    ]
    return f"{rows[0]['model']}, {rows[0]['draft']}\n\n{markdown(COLUMNS, lines)}"


def _speedup(row: dict[str, Any]) -> str:
    return "" if row["speedup"] is None else f"{row['speedup']:.2f}x"


def require_plot(path: str) -> None:
    """Check before the measurement that a plot can be written to *path*.

    Raises:
        NpurtError: matplotlib is missing, or *path* has another suffix or no existing folder.
    """
    target = Path(path)
    if target.suffix not in FORMATS or not target.parent.is_dir():
        raise NpurtError(
            f"cannot draw to {path}",
            remedy=f"name a file in a folder that exists, ending with {', '.join(FORMATS)}",
        )
    if find_spec("matplotlib") is None:
        raise NpurtError(
            "drawing needs matplotlib, which is not installed",
            remedy=f"install it ({extras.command('plot')}), or leave out --plot",
        )


def plot(rows: Rows, path: str) -> None:
    """Plot speedup over draft length, one line per prompt, to the file *path*.

    Raises:
        NpurtError: The file cannot be written.  No incomplete file remains.
    """
    drawing = io.BytesIO()
    _figure(rows).savefig(drawing, format=Path(path).suffix[1:])
    try:
        with replacing(Path(path)) as file:
            file.write(drawing.getvalue())
    except OSError as error:
        raise NpurtError(
            f"cannot write {path}: {error.strerror}", remedy="choose another place for the drawing"
        ) from error


def _figure(rows: Rows) -> Any:
    figure = import_module("matplotlib.figure").Figure(layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color="grey", linestyle="dashed")
    for i, prompt in enumerate(dict.fromkeys(row["prompt"] for row in rows)):
        known = [r for r in rows if r["prompt"] == prompt and r["speedup"] is not None]
        fixed = sorted((r["n"], r["speedup"]) for r in known if r["n"] not in (0, "auto"))
        chosen = [r["speedup"] for r in known if r["n"] == "auto"]
        axes.plot(*zip(*fixed, strict=True), color=f"C{i}", marker="o", label=prompt)
        axes.plot([0] * len(chosen), chosen, color=f"C{i}", marker="*", linestyle="none")
    axes.set_xlabel("tokens drafted at once (star: chosen while it runs)")
    axes.set_ylabel("speedup over plain decoding")
    axes.set_title(f"{rows[0]['model']}\n{rows[0]['draft']}", fontsize="small")  # names may be long
    axes.legend()
    return figure
