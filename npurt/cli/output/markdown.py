"""Render Markdown on a terminal with rich, while the model generates it.

`Live` redraws the last block until the next block begins; then the finished block is printed once.
`Live` draws fewer lines than the screen has, because it cannot redraw lines that scrolled away.
No text is lost: elements that rich would drop (HTML, images, link definitions, tables and nested
blocks that are too wide) are printed as plain text.
"""

import itertools
import time
from collections.abc import Iterable

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown, TableElement
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from npurt.cli.signals import deferred

SECONDS = 0.1  # minimum time between two refreshes
SHARE = 0.1  # maximum share of the time that refreshes may take
COLUMNS = 4  # minimum width of a level of nesting or a column of a table, in characters
LEVELS = 20  # levels of nesting; MarkdownIt drops deeper ones
SHOWN_AS_WRITTEN = ("reference", "html_block", "html_inline", "image", "autolink")
PARSER = (
    MarkdownIt("commonmark", {"maxNesting": LEVELS})
    .enable(["strikethrough", "table"])
    .disable(SHOWN_AS_WRITTEN)
)
BLOCKS = MarkdownIt("commonmark").enable("table").disable(["inline", "reference", "html_block"])


def show(pieces: Iterable[str]) -> None:
    """Render *pieces* as they arrive; do not end the last line, like ``print(end="")``."""
    page = _Page()
    try:
        for piece in pieces:
            page.write(piece)
    finally:  # also show the text before an interrupt
        page.close()


class _Table(TableElement):
    """A table that wraps long words, which rich would truncate."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Document(Markdown):
    elements = Markdown.elements | {"table_open": _Table}


class _Page:
    """Standard output, and the text of the last block, which `Live` still redraws."""

    def __init__(self) -> None:
        self._console = Console(force_terminal=True, force_interactive=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True,
                          redirect_stdout=False, redirect_stderr=False)  # fmt: skip
        self._text = ""  # Markdown that is not printed yet
        self._follows = False  # whether a block was printed before `_text`
        self._due = 0.0  # time of the next refresh

    def write(self, piece: str) -> None:
        self._text += piece
        began = time.monotonic()
        if began < self._due:
            return
        with deferred(), self._console:
            self._live.start()
            self._print_finished()
            fitting = max(1, self._console.height - 1)
            self._live.update(_joined(self._rendered(self._text)[-fitting:]), refresh=True)
        now = time.monotonic()
        self._due = now + max(SECONDS, (now - began) / SHARE)

    def close(self) -> None:
        with deferred(), self._console:
            self._text += "\n"
            self._print_finished()
            self._hide()
            self._live.stop()
            self._console.print(_joined(self._rendered(self._text)))

    def _print_finished(self) -> None:
        """Print all blocks except the last one, which the next line may extend."""
        whole = self._text[: self._text.rfind("\n") + 1]
        starts = [token.map[0] for token in BLOCKS.parse(whole) if not token.level and token.map]
        if len(starts) < 2:
            return
        self._hide()
        lines = self._text.split("\n")
        for begin, end in itertools.pairwise(starts):
            block = self._rendered("\n".join(lines[begin:end]))
            self._console.print(_joined([*block, []]))
            self._follows = True
        self._text = "\n".join(lines[starts[-1] :])

    def _hide(self) -> None:
        self._live.update(_joined([]), refresh=True)

    def _rendered(self, text: str) -> list[list[Segment]]:
        """Return the rendered lines of *text*, after an empty line if a block was printed."""
        text = text.strip("\n")
        if not text.strip():
            return []
        tokens = PARSER.parse(text)
        max_columns = self._console.width // COLUMNS
        columns = sum(token.type == "th_open" for token in tokens)
        max_level = min(max_columns, LEVELS) - 1
        if columns < max_columns and max(token.level for token in tokens) < max_level:
            document = _Document("", code_theme="ansi_dark", hyperlinks=False)
            document.parsed = tokens
            lines = self._console.render_lines(document, pad=False)
        else:
            lines = self._console.render_lines(Text(text), pad=False)
        lines = _trimmed(_trimmed(lines)[::-1])[::-1]  # rich pads lists, tables and code
        return [[], *lines] if self._follows else lines


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Return *lines* without blank lines at the beginning."""
    blank = itertools.takewhile(lambda line: not "".join(s.text for s in line).strip(), lines)
    return lines[len(list(blank)) :]


def _joined(lines: list[list[Segment]]) -> Segments:
    """Join *lines* with line ends between them."""
    ended = [[*line, Segment.line()] for line in lines[:-1]] + lines[-1:]
    return Segments(segment for line in ended for segment in line)
