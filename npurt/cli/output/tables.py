"""Tables with aligned columns, in Markdown or plain."""

from collections.abc import Sequence
from typing import Any

DRAFTED = ("drafted / accepted", "accept rate", "mean accepted")


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table with the header *columns* and one row per element of *lines*."""
    lines = [columns, ["-" * len(c) for c in columns], *lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def plain(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return the header *columns* and *lines* with aligned columns, without lines around them."""
    every = [columns, *lines]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in every)


def drafted(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of the columns `DRAFTED` for a measurement with a draft."""
    rate = row["accept_rate"]
    return (
        f"{row['drafted']} / {row['accepted']}",
        "" if rate is None else f"{100 * rate:.1f} %",
        f"{row['accepted_length']:.3f}",
    )
