"""Apply the changes that the documents in docs/extending describe in their code blocks.

A block ```diff has hunks separated by @@; +++ precedes the file's name. A block whose
opening line has a title is the whole file of that name. Commands are in blocks ```sh.
"""

import re
import textwrap
from pathlib import Path

BLOCK = re.compile(r'^( *)```(\w+)(?: title="(\S+)")?\n(.*?)^\1```$', re.M | re.S)


def blocks(text):
    """Yield language, named file (or "") and contents of each block of a document."""
    for _, language, name, body in BLOCK.findall(text):
        yield language, name, textwrap.dedent(body) if language != "diff" else body


def created(text):
    """Return the files that a document creates."""
    return [name for _, name, _ in blocks(text) if name]


def commands(text):
    """Return the shell commands that a document tells the reader to type."""
    return [
        line for language, _, body in blocks(text) if language == "sh" for line in body.splitlines()
    ]


def apply(text, folder: Path):
    """Make the changes of a document below *folder*; return the files."""
    changed = []
    for language, name, body in blocks(text):
        if name:
            path = folder / name
            path.write_text(body)
            changed.append(path)
        elif language == "diff":
            changed.append(_patch(body, folder))
    return changed


def _patch(body, folder):
    first, *lines = body.splitlines()
    indent = len(first) - len(first.lstrip())
    path = folder / first.strip().removeprefix("+++ ")
    text = path.read_text()
    for hunk in "\n".join(line[indent:] for line in lines).split("\n@@\n"):
        old = _side(hunk, " -")
        assert text.count(old) == 1, f"{path.name} has {text.count(old)} of these lines:\n{old}"
        text = text.replace(old, _side(hunk, " +"))
    path.write_text(text)
    return path


def _side(hunk, marks):
    kept = [line[1:] for line in hunk.splitlines() if (line or " ")[0] in marks]
    return "".join(f"{line}\n" for line in kept)
