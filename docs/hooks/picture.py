"""Draw docs/picture.svg: a command of npurt and its output on the simulator.

python docs/hooks/picture.py    # in a checkout with the model: npurt models fetch smollm2-135m
"""

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

PROJECT = Path(__file__).resolve().parents[2]
PICTURE = PROJECT / "docs/picture.svg"
COMMAND = (
    "npurt run -m smollm2-135m -dev rknpu:sim --raw --temp 0 --report "
    '-n 10 -p "The three primary colors are"'
)
COLUMNS = 108
WIDTH, HEIGHT, MARGIN = 7.23, 17, 14  # pixels: of a character, of a line, of the margin
FILL = ("#7ee787", "#d5dbe1")  # colours of the command and of its output
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}" role="img" aria-label="A terminal: npurt run, and its report">
<!-- Written by docs/hooks/picture.py: what the command printed, on the simulator. -->
<rect width="100%" height="100%" rx="8" fill="#1b1f24"/>
<g font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="12">
"""
BLANK = "\u00a0"  # browsers join several ordinary spaces of a text in an SVG


def output(model: Path | None = None) -> str:
    """Return the output of the command, run with the model file *model*."""
    words = shlex.split(COMMAND)[1:]
    if model is not None:
        words[words.index("-m") + 1] = str(model)
    command = [sys.executable, "-m", "npurt", *words]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # the report is written to stderr
        text=True,
        check=True,
    )
    return done.stdout


def draw(text: str) -> str:
    """Return the picture of a terminal with the command and *text*."""
    lines = [f"$ {COMMAND}"]
    for line in text.splitlines():
        lines += textwrap.wrap(line, COLUMNS, subsequent_indent="  ", drop_whitespace=False) or [""]
    width, height = round(COLUMNS * WIDTH) + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    # textLength places the characters of any font in the same columns
    drawn = [
        f'<text x="{MARGIN}" y="{MARGIN + HEIGHT * i - 5}" fill="{FILL[i > 1]}" '
        f'textLength="{len(line) * WIDTH:.2f}">{escape(line.replace(" ", BLANK))}</text>\n'
        for i, line in enumerate(map(str.rstrip, lines), 1)
    ]
    return HEAD.format(width=width, height=height) + "".join(drawn) + "</g>\n</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(output()), encoding="utf-8")
