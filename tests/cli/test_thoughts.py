"""A model's reasoning is dimmed on a terminal, and nowhere else."""

import io

import pytest

import npurt as library
from npurt.cli.output import terminal
from npurt.cli.output.terminal import DIM, PLAIN, dimmed, parted
from npurt.llm.text.chat import ChatTemplate
from tests.llm import tiny

QUICK = ("-m", tiny.path("llama3", "q8_0"))
THOUGHT = "<think>\nHm <b>, or </i>?\n</think>\n\nIt is <this>."
SHOWN = f"{DIM}<think>\nHm <b>, or </i>?\n</think>{PLAIN}\n\nIt is <this>."


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (THOUGHT, SHOWN),
        (THOUGHT * 2, SHOWN * 2),
        ("no thought", "no thought"),
        ("<thin", "<thin"),
        ("<<think>x", f"<{DIM}<think>x"),
        ("", ""),
    ],
)
def test_thoughts_are_dimmed_wherever_pieces_end(text, shown, size):
    pieces = [text[i : i + size] for i in range(0, len(text), size)]

    assert "".join(dimmed(parted(pieces))) == shown


@pytest.mark.parametrize("size", [1, 100])
def test_a_thought_that_the_prompt_began_is_dimmed_from_its_first_character(size):
    text = THOUGHT.removeprefix("<think>")
    pieces = [text[i : i + size] for i in range(0, len(text), size)]

    assert "".join(dimmed(parted(pieces, within=True))) == SHOWN.replace("<think>", "")


def test_only_what_may_begin_a_tag_waits():
    said = dimmed(parted(["a <", "b <thi", "nk>c"]))

    assert [piece for piece in said if piece] == ["a ", "<b ", f"{DIM}<think>", "c"]


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variables", "styled"),
    [
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "NO_COLOR": ""}, False),
    ],
)
def test_styles_are_for_terminals_that_have_them(monkeypatch, variables, styled):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert not terminal.has_styles()
    monkeypatch.setattr("sys.stdout", Screen())
    assert terminal.has_styles() == styled


def test_a_chat_dims_and_keeps_the_text_as_it_is(npurt, monkeypatch, tmp_path):
    monkeypatch.setattr(terminal, "has_styles", lambda: True)
    monkeypatch.setattr(library.Llama, "chat", lambda *args, **options: iter([THOUGHT]))
    path = tmp_path / "said.json"

    result = npurt("chat", *QUICK, "--no-markdown", stdin=f"Hello\n/save {path}\n".encode())

    assert result.out == f"{SHOWN}{PLAIN}\n"
    assert DIM not in path.read_text()


def test_a_chat_through_a_pipe_has_no_styles(npurt, monkeypatch):
    monkeypatch.setattr(library.Llama, "chat", lambda *args, **options: iter([THOUGHT]))

    assert npurt("chat", *QUICK, stdin=b"Hello\n").out == f"{THOUGHT}\n"


@pytest.mark.parametrize("begun", ["<think>", "<think>\n", ""])
def test_a_template_may_begin_the_thought(npurt, monkeypatch, begun):
    monkeypatch.setattr(terminal, "has_styles", lambda: True)
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **options: f"Hello{begun}")
    monkeypatch.setattr(library.Llama, "chat", lambda *args, **options: iter(["So.</think>Yes."]))

    out = npurt("chat", *QUICK, "--no-markdown", stdin=b"Hello\n").out

    assert out == (f"{DIM}So.</think>{PLAIN}Yes." if begun else "So.</think>Yes.") + f"{PLAIN}\n"
