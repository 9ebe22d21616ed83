"""Answers rendered from Markdown on a terminal: the final screen, and bytes never sent."""

import io
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npurt as library
from npurt.cli.output import markdown, terminal
from tests.cli.pseudo_terminal import Terminal
from tests.llm import tiny

QUICK = ("-m", tiny.path("llama3", "q8_0"))
SIZE = (70, 12)
# This program shows a file as an answer; argv: the file's name, the characters per piece.
SHOW = """
import sys, time
from npurt.cli.output import terminal
from pathlib import Path

text, size = Path(sys.argv[1]).read_bytes().decode(), int(sys.argv[2])
pieces = (text[i : i + size] for i in range(0, len(text), size))
if len(sys.argv) > 3:  # an answer that goes on
    def endless(pieces):
        yield from pieces
        while True:
            time.sleep(0.01)
            yield "\\n"
    pieces = endless(pieces)
try:
    terminal.show(pieces, within=False, markdown=True)
except KeyboardInterrupt:
    print(" [stopped]", end="")
print("\\nend")
"""
ALLOWED = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A|[\r\n\t]")


def screen(sent):
    """Return the lines of a terminal after the output *sent*, including scrolled-off lines."""
    lines, row, column = [""], 0, 0
    for control, text in re.findall(r"(\x1b\[\??[\d;]*[a-zA-Z]|[\r\n])|([^\x1b\r\n]+)", sent):
        if text:
            lines[row] = lines[row].ljust(column)[:column] + text
            column = len(lines[row])
        elif control == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif control == "\r":
            column = 0
        elif control.endswith("A"):
            row -= 1
        elif control.endswith("K"):
            lines[row] = ""
    return [line.rstrip() for line in lines]


@pytest.fixture
def shown(tmp_path):
    """Return a function that shows a text on a pseudo-terminal and returns the bytes sent."""

    def show(text, piece=3, size=SIZE, **variables):
        path = tmp_path / "answer.md"
        path.write_bytes(text.encode())
        program = Terminal(
            "-c", SHOW, path, piece, program=(), size=size, **{"TERM": "xterm"} | variables
        )
        try:
            assert program.end() == 0, program.screen
        finally:
            program.close()
        return program.screen

    return show


ANSWER = """\
# Title

Some **bold**
words and `code`.

1. one

   ```py
   def f(): return 1
   ```

2. two
- bullet

| name | 数 |
|------|----|
| 漢字 | 2  |

```
x = [[1]]

y
```

The end.
"""
LINES = [
    "Title", "", "Some bold words and code.", "", "1 one", "", "def f(): return 1", "", "2 two", "",
    "• bullet", "", "name  数", "────────", "漢字  2", "", "x = [[1]]", "", "y", "", "The end.",
    "end", "",
]  # fmt: skip


@pytest.mark.parametrize("piece", [1, 5, 1000])
def test_blocks_are_rendered_wherever_pieces_end(shown, piece):
    sent = shown(ANSWER, piece)

    assert [line.strip() for line in screen(sent)] == LINES
    assert "\x1b[1mbold\x1b[0m" in sent
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")  # the cursor is visible again


def test_a_block_higher_than_the_terminal_comes_out_whole_and_once(shown):
    lines = [f"line {i}" for i in range(3 * SIZE[1])]
    fence = "```\n" + "\n".join(lines) + "\n"  # never closed

    said = [line.strip() for line in screen(shown(f"Look:\n\n{fence}", 40))]

    assert [line for line in said if line] == ["Look:", *lines, "end"]


def test_a_narrow_terminal_loses_no_text(shown):
    words = [f"w{i}" * 9 for i in range(6)]
    row = f"| {' | '.join(words)} |\n"
    text = f"{row}{'|-' * len(words)}|\n{row}\n{'> ' * 8}deep\n\n- {words[0]}\n"

    said = "".join("".join(screen(shown(text, 50, size=(19, 9)))).split())

    assert said.count(words[0]) == 3
    assert all(word in said for word in [*words, "deep"])


def test_what_rich_would_leave_out_is_shown_as_it_was_written(shown):
    text = "<b>html</b> and </kbd>\n\n<div>\nblock\n</div>\n\n[a]: http://a.b\n\n![p](http://c.d)\n"

    said = screen(shown(text))

    for part in ("<b>html</b> and </kbd>", "<div> block </div>", "[a]: http://a.b", "http://c.d"):
        assert any(part in line for line in said), part


HOSTILE = (
    "\x1b]0;owned\x07 \x1b[2J \x9b2J \x1b]8;;http://evil\x1b\\here\x1b]8;;\x1b\\ a\rb\x08\x7f "
    "&#27;[2J &#x9b;2J &#13; [bold red]markup[/] [x](javascript:alert(1)) [y](file:///etc/passwd) "
    "[z](http://z.z) \u202egnp \u2066\n\n```\x1b[2J\n\x1b[31mred\x07\n```\n<think>\x1b[3J</think>\n"
)


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_an_answer_cannot_control_the_terminal(shown, piece):
    sent = shown(HOSTILE, piece)

    left = ALLOWED.sub("", sent)
    assert all(c.isprintable() for c in left), ascii(left)
    assert "]8;" not in left.replace("]8;;http://evil", "").replace("]8;;\\", "")
    said = " ".join(screen(sent))
    for part in ("[bold red]markup[/]", "(javascript:alert(1))", "(file:///etc/passwd)"):
        assert part in said
    assert "z (http://z.z)" in said


def test_a_chat_that_is_stopped_leaves_the_text_and_a_sane_terminal(tmp_path):
    path = tmp_path / "answer.md"
    path.write_text("# Title\n\n- one\n- **two**")
    program = Terminal("-c", SHOW, path, 4, "go on", program=(), size=SIZE, TERM="xterm")
    try:
        program.wait_for("^(?=.*two)")
        program.type("\x03")
        assert program.end() == 0
    finally:
        program.close()

    assert "\x1b[?25h" in program.screen
    assert program.screen.endswith("[stopped]\r\nend\r\n")
    said = screen(program.screen)
    assert [line.strip() for line in said if "one" in line] == ["• one"]
    assert any(re.fullmatch(r" • two +\[stopped\]", line) for line in said)


def test_thoughts_are_dimmed_and_not_rendered(shown):
    sent = shown("<think>a **b**\n</think>\n\nIt **is**.\n")

    assert "".join(re.findall(r"\x1b\[2m(.*?)\x1b\[0m", sent, re.DOTALL)[:1]) == (
        "<think>a **b**\r\n</think>"
    )
    assert "It is." in screen(sent)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_styles_shows_the_text_as_it_is(shown, variables):
    assert shown(ANSWER, **variables) == f"{ANSWER}\nend\n".replace("\n", "\r\n")


@pytest.mark.parametrize("option", [(), ("--no-markdown",)])
def test_the_option_shows_the_text_and_the_conversation_keeps_it(
    npurt, monkeypatch, tmp_path, option
):
    monkeypatch.setattr(terminal, "has_styles", lambda: True)
    monkeypatch.setattr(library.Llama, "chat", lambda *args, **options: iter(["**b", "old**"]))
    path = tmp_path / "said.json"

    out = npurt("chat", *QUICK, *option, stdin=f"Hello\n/save {path}\n".encode()).out

    assert ("**bold**" in out) == bool(option)
    assert "**bold**" in path.read_text()


def test_a_pipe_gets_every_character(capsys):
    terminal.show([HOSTILE], within=False, markdown=True)

    assert capsys.readouterr().out == HOSTILE


# --- Any text -------------------------------------------------------------------------------------

MARKS = [
    "#", ">", "- ", "1. ", "```", "|", "-|-", "\n", "\n\n", "    ", "*", "**", "`", "[", "](",
    ")", "<", "</kbd>", "<kbd>", "![", "&#27;", "\\", "~~", "word", "漢字", "\t", "=",
]  # fmt: skip


class Written(io.StringIO):
    encoding = "utf-8"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(MARKS) | st.text(max_size=3), max_size=40), st.integers(1, 90))
def test_any_text_comes_through(pieces, width):
    pieces = [terminal.harmless(piece) for piece in pieces]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("LINES", "9")
        patch.setattr(markdown, "SECONDS", 0)
        patch.setattr(sys, "stdout", Written())
        markdown.show(pieces)
        sent = sys.stdout.getvalue()

    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]", sent.replace("\r", ""))
    assert "\x1b" not in ALLOWED.sub("", sent)
