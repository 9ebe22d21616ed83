"""What only a terminal has: dimmed text, and lines that were typed before."""

import contextlib
import sys
from collections.abc import Iterable, Iterator

from npurt import settings

BEGIN, END = "<think>", "</think>"  # around what a model thinks
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HISTORY, MOST_LINES = "chat_history", 1000


def has_styles() -> bool:
    """Return whether standard output is a terminal that can dim text."""
    return sys.stdout.isatty() and settings.terminal_has_styles()


def dimmed(pieces: Iterable[str], *, within: bool = False) -> Iterator[str]:
    """Yield the text of *pieces*, with what the model thinks dimmed.

    A tag may be divided among pieces: what may be the beginning of one waits for the next.

    Args:
        within: The text begins with a thought, whose first tag is in the prompt.
    """
    tag, held = END if within else BEGIN, DIM if within else ""
    for piece in pieces:
        held += piece
        while tag in held:
            before, _, held = held.partition(tag)
            yield f"{before}{DIM}{tag}" if tag == BEGIN else f"{before}{tag}{PLAIN}"
            tag = END if tag == BEGIN else BEGIN
        sure = len(held) - _begun(tag, held)
        yield held[:sure]
        held = held[sure:]
    yield held


def _begun(tag: str, text: str) -> int:
    """Return how many characters at the end of *text* may be the beginning of *tag*."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


@contextlib.contextmanager
def history(*, kept: bool) -> Iterator[None]:
    """Have `input` edit lines, and bring back earlier ones: with *kept*, those of earlier chats.

    A history that cannot be read or written stops no chat.
    """
    try:
        import readline
    except ImportError:  # a Python without it
        kept = False
    if not (kept and sys.stdin.isatty()):
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
            readline.set_history_length(MOST_LINES)
            readline.write_history_file(path)
