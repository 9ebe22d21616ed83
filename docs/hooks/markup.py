"""Convert GitHub's Markdown to mkdocs': links of the README, titles of code blocks, lists."""

import posixpath
import re

ITEM = re.compile(r"(?:\d+\.|-) +")
INDENT = 4  # columns by which Python-Markdown indents the content of a list item
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def seen_from_docs(text: str) -> str:
    """Return the README as a page of docs/."""

    def link(found: re.Match[str]) -> str:
        mark, words, target, section = found.groups()
        target = posixpath.relpath(target, "docs")
        return f"{mark}[{words}]({target}{section or ''})"

    return LINK.sub(link, text)


def with_reasons(markdown: str) -> str:
    """Replace the attribute `needs` of code blocks, which the tests read, by a title."""
    return re.sub(r'^( *```sh) needs="([^"\n]+)"$', r'\1 title="needs \2"', markdown, flags=re.M)


def with_lists(markdown: str) -> str:
    """Convert lists from GitHub's Markdown to Python-Markdown.

    What belongs to an item is indented by four columns, not by the width of "- " or "1. "; a list
    after a text, and an item after another's second paragraph, have an empty line before them.
    """
    lines: list[str] = []
    width, fenced, gap = 0, False, False
    for line in markdown.split("\n"):
        item = None if fenced else ITEM.match(line)
        if item:
            if lines and lines[-1].strip() and (gap or not width):
                lines.append("")
            width, gap = item.end(), False
        elif not line.strip():
            gap = True
        elif len(line) - len(line.lstrip()) < width:
            width = 0
        fenced ^= line.lstrip().startswith("```")
        lines.append(
            line if item or not width or not line.strip() else " " * (INDENT - width) + line
        )
    return "\n".join(lines)
