"""Terminal output and input: styles, filtered control characters, and the input history."""

import contextlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator

from npurt import settings

BEGIN, END = "<think>", "</think>"  # tags around a thought
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# Control characters except tab and newline, line separators, direction marks and surrogates.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
HISTORY, MAX_LINES = "chat_history", 1000


def has_styles() -> bool:
    """Return whether standard output is a terminal that can dim text."""
    return sys.stdout.isatty() and settings.terminal_has_styles()


def show(pieces: Iterable[str], *, within: bool, markdown: bool) -> None:
    """Print an answer as it arrives; on a terminal, with styles and without control characters.

    Args:
        pieces: The text of the answer.
        within: Whether the text begins inside a thought, whose opening tag is in the prompt.
        markdown: Whether to render the text outside thoughts as Markdown, if there are styles.
    """
    if sys.stdout.isatty():
        pieces = map(harmless, pieces)
    if not has_styles():
        _print(pieces)
        return
    try:
        if markdown:
            _render(parted(pieces, within=within))
        else:
            _print(dimmed(parted(pieces, within=within)))
    finally:
        print(end=PLAIN)


def harmless(text: str) -> str:
    """Return *text* without characters that control a terminal or the direction of text."""
    return CONTROLS.sub("", text)


def _print(pieces: Iterable[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)


def _render(parts: Iterable[tuple[str, bool]]) -> None:
    """Print thoughts dimmed, and render the other text as Markdown."""
    from npurt.cli.output.markdown import show as show_markdown

    gap = ""
    for thought, group in itertools.groupby(parts, key=lambda part: part[1]):
        print(end=gap)
        gap = "\n\n"
        if thought:
            _print(dimmed(group))
            print(end=PLAIN)
        else:
            show_markdown(text for text, _ in group)


def parted(pieces: Iterable[str], *, within: bool = False) -> Iterator[tuple[str, bool]]:
    """Split the text of *pieces*; yield each part and whether it belongs to a thought.

    A tag may be split over pieces: text that may begin a tag is buffered until the next piece.

    Args:
        pieces: The text of the answer.
        within: Whether the text begins inside a thought, whose opening tag is in the prompt.
    """
    tag, held = END if within else BEGIN, ""
    for piece in pieces:
        held += piece
        while tag in held:
            before, _, held = held.partition(tag)
            yield from _said((before, tag == END), (tag, True))
            tag = END if tag == BEGIN else BEGIN
        sure = len(held) - _begun(tag, held)
        yield from _said((held[:sure], tag == END))
        held = held[sure:]
    yield from _said((held, tag == END))


def _said(*parts: tuple[str, bool]) -> Iterator[tuple[str, bool]]:
    return (part for part in parts if part[0])


def dimmed(parts: Iterable[tuple[str, bool]]) -> Iterator[str]:
    """Yield the text of *parts*, with escape sequences that dim thoughts."""
    dim = False
    for text, thought in parts:
        style = "" if thought == dim else DIM if thought else PLAIN
        yield style + text
        dim = thought


def _begun(tag: str, text: str) -> int:
    """Return the number of characters at the end of *text* that may be the beginning of *tag*."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


@contextlib.contextmanager
def history(*, enabled: bool) -> Iterator[None]:
    """Enable line editing and history in `input`, if *enabled* is true and stdin is a terminal.

    The history includes earlier chats.  Errors in accessing the history file are ignored.
    """
    try:
        import readline
    except ImportError:  # a Python without readline
        enabled = False
    if not (enabled and sys.stdin.isatty()):
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(settings.state_folder() / HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path = settings.state_folder() / HISTORY
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.set_history_length(MAX_LINES)
            readline.write_history_file(path)
