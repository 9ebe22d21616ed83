"""The table of `npurt bench --parallel`: llama-batched-bench's columns, the spread, and drafts."""

from collections.abc import Sequence
from typing import Any

from npurt.cli.output.tables import DRAFTED, drafted, markdown

COLUMNS = ("PP", "TG", "B", "S_PP t/s", "S_TG t/s", "S t/s", "S_TG x", "spread")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a markdown table; ``S_TG x`` is the ratio to S_TG in the first row."""
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
                *(drafted(row) if "draft" in row else ()),
            )
        )
    shared = f", {first['shared_prefix']} tokens shared" if first["shared_prefix"] else ""
    draft = f", draft {first['draft']}" if "draft" in first else ""
    about = f"{first['model']}, {first['device']}, {first['threads']} threads{shared}{draft}"
    return f"{about}\n\n{markdown(COLUMNS + DRAFTED if draft else COLUMNS, lines)}"
