"""What `npurt bench --parallel` shows: the columns of llama-batched-bench, and the spread."""

from collections.abc import Sequence
from typing import Any

from npurt.cli.tables import markdown

COLUMNS = ("PP", "TG", "B", "S_PP t/s", "S_TG t/s", "S t/s", "S_TG x", "spread")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a markdown table; ``x`` compares with the first row."""
    first, lines = rows[0], []
    for row in rows:
        lines.append(
            (
                str(row["prompt"]),
                str(row["generated"]),
                str(row["parallel"]),
                f"{row['pp_tokens_per_s']:.2f}",
                f"{row['tg_tokens_per_s']:.2f}",
                f"{row['tokens_per_s']:.2f}",
                f"{row['tg_tokens_per_s'] / first['tg_tokens_per_s']:.2f}",
                f"{row['spread']:.2f}",
            )
        )
    shared = f", {first['shared_prefix']} tokens shared" if first["shared_prefix"] else ""
    about = f"{first['model']}, {first['device']}, {first['threads']} threads{shared}"
    return f"{about}\n\n{markdown(COLUMNS, lines)}"
